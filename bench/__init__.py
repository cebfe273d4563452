"""Benchmarks: Trackside compared with other tools in the same run, reported as ratios."""
