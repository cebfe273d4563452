"""BPF probes in libraries of other processes: loading, attaching, following processes, and interpreting the counts."""
