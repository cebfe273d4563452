"""One HTTP server that is asked: retries, deadlines, bounds and credentials in one place (decision 0010)."""
