"""``python -m trackside``."""

from trackside.cli import main

main(prog_name="trackside")
