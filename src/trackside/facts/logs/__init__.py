"""Facts from log lines and scheduler records: ends, deaths, exceptions, absent ranks. Start with ending.py."""
