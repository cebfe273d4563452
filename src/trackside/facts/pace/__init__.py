"""How fast the run was and which ranks delayed it."""
