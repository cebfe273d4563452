"""The GPU-hours that a run was allocated and what they were used for. The verdict computes what a fault cost.
Start with allocation.py."""
