"""Compares two runs: what differs, and from which point on. Start with ``compare.py``."""
