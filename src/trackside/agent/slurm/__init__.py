"""What Slurm reports by its commands and logs."""
