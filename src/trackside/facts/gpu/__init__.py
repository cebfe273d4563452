"""What the GPUs did: work, wait or nothing, and when they stopped."""
