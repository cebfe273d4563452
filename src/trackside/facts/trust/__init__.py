"""How far the telemetry can be trusted, and what limits the verdict."""
