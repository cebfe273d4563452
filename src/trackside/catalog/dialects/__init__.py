"""Foreign metric names and labels mapped to ours: one source = one file, data only."""
