"""The embedded store: Parquet segments under a manifest, read by DuckDB (decision 0007)."""
