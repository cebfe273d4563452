"""What exporters on a node serve: one file an exporter."""
