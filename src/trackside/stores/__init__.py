"""Stores of rows, samples, logs and verdicts: one file per engine behind :class:`trackside.evidence.Store`."""
