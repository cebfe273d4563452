"""Bundles: one file with a run's evidence and verdict, to hand to others; optionally sliced and redacted."""
