"""Slurm's commands and logs: jobs, nodes, accounting and the scheduler's statistics."""
