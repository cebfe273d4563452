"""How the run was set up, as its log prints it: hosts and commands, environment settings, the start of training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.query import events


@dataclass(frozen=True, eq=False)
class Setup:
    """The lines that say so. Frames that no input answered are empty."""

    hosts: Frame
    starts: Frame
    flags: Frame
    has_log: bool
    """Whether there was a log that could show settings of the environment."""

    @cached_property
    def command(self) -> Value | None:
        """The command that was run, as the log prints it."""
        row = next((row for row in self.hosts.events if row.get("command")), None)
        return None if row is None else self.hosts.value(row, "command")

    @cached_property
    def environment(self) -> dict[str, Value]:
        """Environment settings that the log shows to be in force."""
        return {str(row.get("name")): self.flags.value(row, "value") for row in self.flags.events}


@fact({"hosts": events("host"), "starts": events("training_start"), "flags": events("env_flag")})
def setup(evidence: Evidence) -> Setup:
    """Of the lines; nothing is needed."""
    return Setup(evidence["hosts"], evidence["starts"], evidence["flags"], evidence.has("flags"))
