"""Facts about how fast the run was and which ranks delayed it. Start with pace.py."""
