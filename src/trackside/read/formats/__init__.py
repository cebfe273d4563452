"""One file per format; each defines ``FORMAT`` or ``FORMATS``."""
