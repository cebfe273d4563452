"""Compares two runs: what differs, and from which point on."""
