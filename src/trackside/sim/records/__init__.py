"""The records of a simulated run: output of the job, Slurm's records and kernel logs, one module per source."""
