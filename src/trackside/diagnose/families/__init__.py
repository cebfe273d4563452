"""ONE FAILURE FAMILY = ONE FILE. A module here that defines ``FAMILY`` is registered by being there."""
