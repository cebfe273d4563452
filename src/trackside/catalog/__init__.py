"""The kinds of events (``events.py``), records (``records.py``) and metrics (``metrics.py``): fields, units, meanings."""
