"""Whose is a process: its cgroup, its environment, and the map of all of them."""
