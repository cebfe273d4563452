"""Benchmarks: our work beside a peer's in one run, reported as ratios."""
