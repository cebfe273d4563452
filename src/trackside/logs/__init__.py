"""Parsers of log lines, one module per framework or system; start with :mod:`.scan`, the one pass over a log's bytes.

A module here that defines ``PARSER`` is registered because it is in this package.
"""
