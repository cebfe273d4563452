"""Slurm's fields and columns: the spellings of each tool, and parsers for their values."""
