"""Scenarios that come along, one TOML file each."""
