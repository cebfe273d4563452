"""Facts about the inputs: how far telemetry can be trusted, and what limits the verdict. Start with preflight.py."""
