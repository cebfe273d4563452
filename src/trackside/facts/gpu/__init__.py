"""Facts about what the GPUs did: work, wait or nothing, and when they stopped. Start with activity.py."""
