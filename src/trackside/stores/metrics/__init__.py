"""Metric stores that are queried: one engine per file; no registration is needed
(:mod:`trackside.stores.metric_server`)."""
