"""The sources of readings, one file each. A module that defines ``SOURCE`` is registered because it is here."""
