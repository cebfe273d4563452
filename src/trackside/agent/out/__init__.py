"""Where readings go: an exposition to scrape, remote write, Loki's push; and the spool before them."""
