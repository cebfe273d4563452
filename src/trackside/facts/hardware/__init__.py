"""What counters, gauges and clocks say of the machines."""
