"""The cluster demo on a real Slurm cluster: jobs with injected faults, agents on the nodes, a receiver, verdicts."""
