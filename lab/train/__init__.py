"""The training scripts that the lab runs; each is copied beside its data and started there."""
