"""The kernel's messages: from its ring (``/dev/kmsg``), or where that may not be read from the journal."""
