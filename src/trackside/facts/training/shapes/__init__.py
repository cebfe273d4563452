"""Wrong shapes of a loss curve: one file per kind, each with detectors that return the onset."""
