"""The last loop of a log whose lines no reader knows: it counted to its total, or the log goes on to other lines."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.exceptions import is_raised_in_import
from trackside.facts.logs.order import follows
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

REACHES_TOTAL = Sentence("the last loop of the log counts to its total: {line}")
GOES_ON = Sentence("the last loop of the log counts to {count:plain}, and other lines follow: {line}")


@dataclass(frozen=True)
class LastLoop:
    """Alike lines that count up, at the end of a log."""

    frame: Frame

    @property
    def done(self) -> Event | None:
        """The last line of a loop that was done when the log ended."""
        return next((row for row in reversed(self.frame.events) if row.get("done")), None)

    @property
    def done_claims(self) -> tuple[Claim, ...]:
        """How far that one counts."""
        if (row := self.done) is None:
            return ()
        line, count, total = self.frame.value(row, "text"), row.get("count"), row.get("total")
        if isinstance(count, int) and isinstance(total, int) and count >= total:
            return (REACHES_TOTAL(line=line),)
        return (GOES_ON(count=self.frame.value(row, "count"), line=line),)

    def work_before(self, error: Event) -> Value | None:
        """The last line of a loop that an error interrupted; an import that fails begins another program."""
        if is_raised_in_import(error):
            return None
        rows = (row for row in self.frame.events if row.get("at_work") and row.at.path == error.at.path)
        return next((self.frame.value(row, "text") for row in rows if follows(error, row)), None)


@fact({"loops": events("counted_lines")})
def last_loop(evidence: Evidence) -> LastLoop:
    """Needs no particular input; empty if no log has one."""
    return LastLoop(evidence["loops"])
