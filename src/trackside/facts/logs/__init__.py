"""What log lines and records show: ends, deaths, exceptions, absent ranks."""
