"""The sources of a site. ``config.py`` reads the settings, ``slurm.py`` queries Slurm, ``hits.py`` log stores."""
