"""Commands for people who build Trackside: accuracy on labeled cases, generated pages, the release lock."""
