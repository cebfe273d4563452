"""What senders push, durable before it is acknowledged, and how it becomes the embedded store's (decision 0012)."""
