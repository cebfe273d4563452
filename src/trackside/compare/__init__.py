"""Two runs beside each other: what differs, and where they part."""
