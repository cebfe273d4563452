"""Facts: typed answers that follow from the evidence. Each is derived once per run, from queries and other facts."""
