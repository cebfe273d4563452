"""Jobs that seem to hang: who they are, what they do, and where each of their ranks stands."""
