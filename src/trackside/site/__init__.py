"""Where things are at this site: its settings, its Slurm, its log stores and journals."""
