"""What lines and records testify to: ends, deaths, exceptions, who stayed away."""
