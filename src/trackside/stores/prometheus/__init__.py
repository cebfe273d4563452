"""Queries a Prometheus-compatible store: metric queries as PromQL (decision 0010)."""
