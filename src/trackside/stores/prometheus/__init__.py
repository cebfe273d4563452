"""Metrics of a Prometheus-compatible store: the query algebra as PromQL (decision 0010)."""
