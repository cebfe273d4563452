"""Facts: typed answers that follow from the evidence. Each is derived once per run, from queries and other facts.

Start with fact.py, the contract; then logs/ending.py, a fact that most families use."""
