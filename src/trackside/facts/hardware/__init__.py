"""What counters, gauges and clocks show about the machines."""
