"""What Slurm says by its own commands and logs, for the sources that pass it on."""
