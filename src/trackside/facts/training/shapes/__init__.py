"""Wrong shapes of a loss curve: a file a kind, each with detectors that say where it began."""
