"""Metric stores that are asked: one engine a file, registered by being there (:mod:`trackside.stores.metric_store`)."""
