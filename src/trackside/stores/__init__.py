"""WHERE IS IT KEPT: one file per engine behind :class:`trackside.query.Store`."""
