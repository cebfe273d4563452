"""``python -m trackside``."""

from trackside.cli import main

main()
