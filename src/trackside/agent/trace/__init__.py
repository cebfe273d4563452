"""Probes in other processes' libraries by BPF: loading, attaching, following processes, and what the counts mean."""
