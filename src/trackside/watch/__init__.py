"""Diagnoses a running job repeatedly until it ends: ``follow.py``."""
