"""Runs that are still going: asked again until they end."""
