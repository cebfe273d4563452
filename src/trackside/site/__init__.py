"""The sources of a site: its settings, its Slurm, its log stores and journals."""
