"""Slurm's fields and columns: how each tool spells them, and how their values are read."""
