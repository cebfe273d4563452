"""The job and rank of a process: by its cgroup and its environment, and a map of all processes."""
