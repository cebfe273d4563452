"""WHICH RUN WAS IT: job -> attempt -> node -> rank; parent runs; which logs belong to it."""
