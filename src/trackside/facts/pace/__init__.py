"""How fast the run went and who held it up."""
