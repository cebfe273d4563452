"""Hang detection: which jobs seem to hang, and where each of their ranks is."""
