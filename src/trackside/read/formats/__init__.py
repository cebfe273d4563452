"""One file a format: ``FORMAT`` or ``FORMATS``."""
