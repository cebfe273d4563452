"""All kinds together: what is known of a run is learned, then any text of it is replaced and looked through again."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from trackside.bundle.redact.addresses import IPv4, IPv6, Mac
from trackside.bundle.redact.hardware import GpuUuids, Guids, MachineIds, Serials
from trackside.bundle.redact.hosts import Hosts
from trackside.bundle.redact.kind import Kind
from trackside.bundle.redact.people import Words, accounts, clusters, users
from trackside.bundle.redact.projects import Buckets, Owners, Projects
from trackside.bundle.redact.secrets import Emails, Secrets
from trackside.bundle.redact.sieve import Look, Sieve, Sign
from trackside.bundle.redact.tables import cells
from trackside.bundle.redact.traces import Traces
from trackside.model import Event, Record, Run, Series

PIECE = 1 << 20
"""Bytes that are looked through at once."""
LONGEST = 64 << 20
"""Bytes of the longest line that is taken whole."""
HEADS = 1 << 17
"""Sets of labels that are remembered."""
_OWNERS = ("user", "reason_user")
_HOSTS = ("nodes", "failed_node")


class Redactor:
    """``also``: words that the owner wants out. Learn, ``settle``, then replace."""

    def __init__(self, also: Iterable[str] = ()) -> None:
        self._heads: dict[str, str] = {}
        self._hosts, self._users, self._accounts, self._clusters = Hosts(), users(), accounts(), clusters()
        # What holds other things goes first: a URL has a password, an address of mail a user and a host.
        # What the surroundings tell goes before what would change the surroundings.
        self._told = Buckets(), Projects(), Owners()
        self.kinds: tuple[Kind, ...] = (
            Secrets(), *self._told, Words(also), Emails(), GpuUuids(), Serials(), MachineIds(), Guids(), Mac(),
            IPv6(), IPv4(), self._hosts, self._users, self._accounts, self._clusters,
        )  # fmt: skip
        self._looks: list[Look] = []
        self._learner = self._sieve = Sieve(())

    def learn(self, text: str) -> None:
        """Look for names in a text of whole lines, after all that records and curves name was learned."""
        if not self._looks:
            self._looks = [each for kind in self.kinds for each in kind.looks]
            self._learner = _learner(tuple(each.sign for each in self._looks))
        if _SAMPLED.search(text):
            text = "".join(self._fresh(text))
        for column, value in cells(text):
            (self._users if column == "user" else self._accounts).add(value)
        found = self._learner.by_sign(text.encode("utf-8", "surrogateescape"))
        for each, lines in zip(self._looks, found, strict=True):
            for thing in dict.fromkeys(each.pattern.findall(lines.decode("utf-8", "surrogateescape"))):
                each.add(thing)

    def _fresh(self, text: str) -> Iterator[str]:
        """Lines, but of samples only labels that were not met before."""
        for line in text.splitlines(keepends=True):
            head, _ = _split(line)
            if head is None:
                yield line
            elif head not in self._heads:
                if len(self._heads) < HEADS:
                    self._heads[head] = ""
                yield f"{head}\n"

    def learn_rows(self, rows: Iterable[Event | Record]) -> None:
        """What readers found."""
        for row in rows:
            if isinstance(row, Event):
                if row.node:
                    self._hosts.add(row.node, sure=True)
                continue
            for name in _HOSTS:
                for host in row.many(name):
                    self._hosts.add(host, sure=True)
            for name in _OWNERS:
                for user in row.many(name):
                    self._users.add(user)
            if row.kind == "node" and (name_ := row.get("name")):
                self._hosts.add(str(name_), sure=True)
            if row.kind == "job" and (cluster := row.get("cluster")):
                self._clusters.add(str(cluster))

    def learn_series(self, series: Iterable[Series]) -> None:
        """Labels of curves."""
        for each in series:
            if (node := each.get("node")) is not None:
                self._hosts.add(node, sure=True)
            if (user := each.get("user")) is not None:
                self._users.add(user)

    def learn_run(self, run: Run) -> None:
        """What was worked out of a run."""
        for node in (*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)):
            self._hosts.add(node, sure=True)
        if run.user:
            self._users.add(run.user)
        if run.cluster:
            self._clusters.add(run.cluster)

    def settle(self) -> None:
        """Everything was learned."""
        for kind in self.kinds:
            kind.settle()
        self._heads.clear()
        self._sieve = Sieve(sign for kind in self.kinds for sign in kind.signs())

    def text(self, text: str) -> str:
        """A text without what tells who or where."""
        if not _SAMPLED.search(text):
            return self._plain(text)
        # Of samples the labels stand in line after line: they are replaced once.
        found: list[str] = []
        plain: list[str] = []
        for line in text.splitlines(keepends=True):
            head, rest = _split(line)
            if head is None:
                plain.append(line)
                continue
            if plain:
                found.append(self._plain("".join(plain)))
                plain.clear()
            known = self._heads.get(head)
            if known is None:
                known = self._all(head)
                if len(self._heads) < HEADS:
                    self._heads[head] = known
            found += (known, rest)
        found.append(self._plain("".join(plain)))
        return "".join(found)

    def _plain(self, text: str) -> str:
        """The same for what are no samples: only lines that have a sign are looked at."""
        if "PRIVATE KEY" in text:  # one has many lines
            return self._all(text)
        data = text.encode("utf-8", "surrogateescape")
        spans = self._sieve.spans(data)
        if not spans:
            return text
        picked = b"".join(data[begin:end] for begin, end in spans).decode("utf-8", "surrogateescape")
        lines = self._all(picked).encode("utf-8", "surrogateescape")
        found, position, place = [], 0, 0
        for begin, end in spans:
            found.append(data[position:begin])
            position, last = end, place
            for _ in range(data.count(b"\n", begin, end)):
                last = lines.index(b"\n", last) + 1
            last = last if end < len(data) or data.endswith(b"\n") else len(lines)
            found.append(lines[place:last])
            place = last
        found.append(data[position:])
        return b"".join(found).decode("utf-8", "surrogateescape")

    def _all(self, text: str) -> str:
        for kind in self.kinds:
            text = kind.replaced(text)
        for told in self._told:
            text = told.replaced_elsewhere(text)
        return text

    def stream(self, stream: io.BufferedIOBase) -> Iterator[bytes]:
        """The same for a stream of text."""
        for data in pieces(stream):
            yield self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def traces(self) -> Traces:
        """What is looked for in all that was written."""
        return Traces(self.kinds)

    @property
    def replaced(self) -> dict[str, int]:
        """Kind -> how many distinct ones have a name."""
        return {kind.name: len(kind.names) for kind in self.kinds if kind.names}

    @property
    def mapping(self) -> Mapping[str, Mapping[str, str]]:
        """Kind -> thing -> its name: the key, for the owner alone."""
        return {kind.name: dict(sorted(kind.names.items())) for kind in self.kinds if kind.names}


@lru_cache(maxsize=1)
def _learner(signs: tuple[Sign, ...]) -> Sieve:
    """A sieve for what is learned by; without names of hosts it is always the same."""
    return Sieve(signs)


_SAMPLED = re.compile(r"\} [\dN+-]|\"(?:values|timestamps)\":\[")
"""What a text with samples has."""
_SAMPLE = re.compile(r"([^\n]*?\}),?(?:(?<=,)\"(?:values|timestamps)\":\[|(?<=\}) )")
_NUMBERS = str.maketrans("", "", "0123456789.+-eE \r\n,[]}")


def _split(line: str) -> tuple[str | None, str]:
    """A line of samples as its labels and its numbers; None for any other line."""
    match = _SAMPLE.match(line)
    if match is None:
        return None, line
    rest = line[match.end(1) :]
    left = rest.translate(_NUMBERS)
    return (match[1], rest) if left in ("", "NaN", '"values":"timestamps":') else (None, line)


_CUT = re.compile(rb"[\s,;]")


def pieces(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """A stream in pieces of whole lines, private keys in one; a line longer than LONGEST is cut between two words."""
    carry = b""
    while data := stream.read(PIECE):
        carry = carry + data if carry else data
        end = carry.rfind(b"\n") + 1
        begin = carry.rfind(b"-----BEGIN", 0, end)
        if begin >= 0 and b"-----END" not in carry[begin:end] and len(carry) - begin < 64 << 10:
            end = begin
        if not end and len(carry) >= LONGEST:
            end = max((match.end() for match in _CUT.finditer(carry, len(carry) - 4096)), default=len(carry))
        if end:
            yield carry[:end]
            carry = carry[end:]
    if carry:
        yield carry
