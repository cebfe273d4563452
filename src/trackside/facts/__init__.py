"""WHAT FOLLOWS FROM THE EVIDENCE: typed answers, each derived once per run from queries and other facts."""
