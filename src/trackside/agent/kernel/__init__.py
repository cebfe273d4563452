"""The kernel's messages, from its ring buffer (``/dev/kmsg``), or from the journal if that may not be read."""
