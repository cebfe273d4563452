"""HTTP client for one server: retries, deadlines, size limits and credentials in one place (decision 0010)."""
