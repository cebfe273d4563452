"""Finds the run in loaded inputs: its job, attempts, nodes, ranks, parent run and logs. Start with ``resolve.py``."""
