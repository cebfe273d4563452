"""Delivery of readings: /metrics, Prometheus remote write, the Loki push API, and the spool in front of the senders."""
