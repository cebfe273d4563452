"""One source of readings a file. A module here that defines ``SOURCE`` is registered by being there."""
