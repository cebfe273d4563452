"""Commands for people who build Trackside: accuracy on labelled cases, generated pages, the release lock."""
