"""The charts of a diagnosed run: one module per chart, discovered by its ``CHART``."""
