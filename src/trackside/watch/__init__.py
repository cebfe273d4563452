"""Follows runs that are still going, until they end."""
