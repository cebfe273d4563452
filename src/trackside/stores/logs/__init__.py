"""Log lines of a log store: what is asked of every one, and :mod:`engines`, a file each."""
