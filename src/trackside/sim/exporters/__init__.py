"""What a node's exporters serve: one module per exporter."""
