"""Real small CPU training runs with injected faults, recorded as test scenarios."""
