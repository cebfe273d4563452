"""One HTTP server, asked or sent to: retries, deadlines, bounds and credentials in one place (decision 0010)."""
