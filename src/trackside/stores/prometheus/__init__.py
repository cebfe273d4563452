"""Queries a Prometheus-compatible store: metric questions as PromQL (decision 0010)."""
