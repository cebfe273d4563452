"""Commands for developers of Trackside: accuracy on labeled cases, generated pages, the lint of names."""
