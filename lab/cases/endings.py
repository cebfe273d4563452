"""Cases."""

from lab.case import Case

CASES: tuple[Case, ...] = ()
