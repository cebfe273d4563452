"""WHAT CAN BE KNOWN: every kind of event and record once, with its plane, fields and meaning."""
