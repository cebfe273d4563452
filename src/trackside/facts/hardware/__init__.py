"""Facts about the machines, from counters, gauges, clocks and kernel logs. Start with health.py."""
