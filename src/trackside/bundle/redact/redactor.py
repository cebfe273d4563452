"""Combines all kinds: learns the names of a run, then redacts its texts and searches them for originals again."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from trackside.bundle.redact.addresses import IPv4, IPv6, Mac
from trackside.bundle.redact.hardware import GpuUuids, Guids, MachineIds, Serials
from trackside.bundle.redact.hosts import Hosts
from trackside.bundle.redact.kind import NameKind
from trackside.bundle.redact.leak_search import LeakSearch
from trackside.bundle.redact.people import ExtraWords, accounts, clusters, users
from trackside.bundle.redact.prefilter import Detector, LinePattern, Prefilter
from trackside.bundle.redact.projects import Buckets, Projects, TeamNames
from trackside.bundle.redact.secrets import Emails, Secrets
from trackside.bundle.redact.tables import people_cells, printed_users
from trackside.model import Event, Record, Run, Series

PIECE_BYTES = 1 << 20
"""Bytes processed at once."""
MAX_LINE_BYTES = 64 << 20
"""Longest line that is kept in one piece, bytes."""
MAX_CACHED_LABEL_SETS = 1 << 17
"""Maximum number of cached label sets."""
_USER_FIELDS = ("user", "reason_user")
_HOST_FIELDS = ("nodes", "failed_node")


class Redactor:
    """Redacts texts: first learn all texts, then call ``assign_pseudonyms``, then redact. ``extra_words``: the user's
    own words to redact."""

    def __init__(self, extra_words: Iterable[str] = ()) -> None:
        self._redacted_labels: dict[str, str] = {}
        self._hosts, self._users, self._accounts, self._clusters = Hosts(), users(), accounts(), clusters()
        # Kinds that contain others come first: a URL contains a password, an e-mail address a user and a host.
        # Kinds recognized by context come before kinds that change that context.
        self._prefixed_kinds = Buckets(), Projects(), TeamNames()
        self.kinds: tuple[NameKind, ...] = (
            Secrets(), *self._prefixed_kinds, ExtraWords(extra_words), Emails(), GpuUuids(), Serials(), MachineIds(),
            Guids(), Mac(), IPv6(), IPv4(), self._hosts, self._users, self._accounts, self._clusters,
        )  # fmt: skip
        self._detectors: list[Detector] = []
        self._learning_prefilter = self._prefilter = Prefilter(())

    def learn(self, text: str) -> None:
        """Learn names from text of whole lines. Call it after learning records and series."""
        text = _without_colors(text)
        if not self._detectors:
            self._detectors = [detector for kind in self.kinds for detector in kind.detectors]
            self._learning_prefilter = _learning_prefilter(tuple(detector.line_pattern for detector in self._detectors))
        if _HAS_SAMPLES.search(text):
            text = "".join(self._new_lines(text))
        for user in printed_users(text):
            self._users.add(user)
        for column, value in people_cells(text):
            (self._users if column == "user" else self._accounts).add(value)
        matched_lines = self._learning_prefilter.lines_by_pattern(text.encode("utf-8", "surrogateescape"))
        for detector, lines in zip(self._detectors, matched_lines, strict=True):
            for original in dict.fromkeys(detector.pattern.findall(lines.decode("utf-8", "surrogateescape"))):
                detector.add(original)

    def _new_lines(self, text: str) -> Iterator[str]:
        """Yield the lines; of sample lines only label sets that are new."""
        for line in text.splitlines(keepends=True):
            labels, _ = _split(line)
            if labels is None:
                yield line
            elif labels not in self._redacted_labels:
                if len(self._redacted_labels) < MAX_CACHED_LABEL_SETS:
                    self._redacted_labels[labels] = ""
                yield f"{labels}\n"

    def learn_rows(self, rows: Iterable[Event | Record]) -> None:
        """Learn names from events and records."""
        for row in rows:
            if isinstance(row, Event):
                if row.node:
                    self._hosts.add(row.node, sure=True)
                continue
            for name in _HOST_FIELDS:
                for host in row.many(name):
                    self._hosts.add(host, sure=True)
            for name in _USER_FIELDS:
                for user in row.many(name):
                    self._users.add(user)
            if row.kind == "node" and (node_name := row.get("name")):
                self._hosts.add(str(node_name), sure=True)
            if row.kind == "job" and (cluster := row.get("cluster")):
                self._clusters.add(str(cluster))

    def learn_series(self, series: Iterable[Series]) -> None:
        """Learn names from the labels of series."""
        for series_ in series:
            if (node := series_.get("node")) is not None:
                self._hosts.add(node, sure=True)
            if (user := series_.get("user")) is not None:
                self._users.add(user)

    def learn_run(self, run: Run) -> None:
        """Learn the names of a run."""
        for node in (*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)):
            self._hosts.add(node, sure=True)
        if run.user:
            self._users.add(run.user)
        if run.cluster:
            self._clusters.add(run.cluster)

    def assign_pseudonyms(self) -> None:
        """Assign pseudonyms after learning."""
        for kind in self.kinds:
            kind.assign_pseudonyms()
        self._redacted_labels.clear()
        self._prefilter = Prefilter(pattern for kind in self.kinds for pattern in kind.line_patterns())

    def text(self, text: str) -> str:
        """The redacted text, without colors: they would hide what they stand in."""
        text = _without_colors(text)
        if not _HAS_SAMPLES.search(text):
            return self._redact_lines(text)
        # Label sets repeat on every line of samples, so redacted ones are cached.
        redacted_parts: list[str] = []
        plain: list[str] = []
        for line in text.splitlines(keepends=True):
            labels, numbers = _split(line)
            if labels is None:
                plain.append(line)
                continue
            if plain:
                redacted_parts.append(self._redact_lines("".join(plain)))
                plain.clear()
            redacted_labels = self._redacted_labels.get(labels)
            if redacted_labels is None:
                redacted_labels = self._redact_with_all_kinds(labels)
                if len(self._redacted_labels) < MAX_CACHED_LABEL_SETS:
                    self._redacted_labels[labels] = redacted_labels
            redacted_parts += (redacted_labels, numbers)
        redacted_parts.append(self._redact_lines("".join(plain)))
        return "".join(redacted_parts)

    def _redact_lines(self, text: str) -> str:
        """The redacted text of lines without samples: only lines that pass the prefilter are processed."""
        if "PRIVATE KEY" in text:  # a key spans many lines
            return self._redact_with_all_kinds(text)
        data = text.encode("utf-8", "surrogateescape")
        spans = self._prefilter.spans(data)
        if not spans:
            return text
        selected = b"".join(data[begin:end] for begin, end in spans).decode("utf-8", "surrogateescape")
        lines = self._redact_with_all_kinds(selected).encode("utf-8", "surrogateescape")
        parts, position, line_start = [], 0, 0
        for begin, end in spans:
            parts.append(data[position:begin])
            position, last = end, line_start
            for _ in range(data.count(b"\n", begin, end)):
                last = lines.index(b"\n", last) + 1
            last = last if end < len(data) or data.endswith(b"\n") else len(lines)
            parts.append(lines[line_start:last])
            line_start = last
        parts.append(data[position:])
        return b"".join(parts).decode("utf-8", "surrogateescape")

    def _redact_with_all_kinds(self, text: str) -> str:
        for kind in self.kinds:
            text = kind.redact(text)
        for kind in self._prefixed_kinds:
            text = kind.redact_elsewhere(text)
        return text

    def stream(self, stream: io.BufferedIOBase) -> Iterator[bytes]:
        """Yield a text stream in redacted pieces."""
        for data in pieces(stream):
            yield self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def leak_search(self) -> LeakSearch:
        """The originals to search for in everything that was written."""
        return LeakSearch(self.kinds)

    @property
    def replaced(self) -> dict[str, int]:
        """Name of a kind -> number of distinct originals replaced."""
        return {kind.plural: len(kind.pseudonyms) for kind in self.kinds if kind.pseudonyms}

    @property
    def mapping(self) -> Mapping[str, Mapping[str, str]]:
        """Name of a kind -> original -> pseudonym: the key, only for the owner."""
        return {kind.plural: dict(sorted(kind.pseudonyms.items())) for kind in self.kinds if kind.pseudonyms}


@lru_cache(maxsize=1)
def _learning_prefilter(line_patterns: tuple[LinePattern, ...]) -> Prefilter:
    """The prefilter for learning, cached because it is the same for every bundle without known hosts."""
    return Prefilter(line_patterns)


_COLOR = re.compile(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033)\[[0-9;]{0,20}m")
"""A terminal's code for a color, also as JSON and shells write it."""


def _without_colors(text: str) -> str:
    return _COLOR.sub("", text) if "\x1b" in text or "\\" in text else text


_HAS_SAMPLES = re.compile(r"\} [\dN+-]|\"(?:values|timestamps)\":\[")
"""Matches text with samples."""
_SAMPLE = re.compile(r"([^\n]*?\}),?(?:(?<=,)\"(?:values|timestamps)\":\[|(?<=\}) )")
_NUMBERS = str.maketrans("", "", "0123456789.+-eE \r\n,[]}")


def _split(line: str) -> tuple[str | None, str]:
    """A line of samples split into labels and numbers; (None, line) for other lines."""
    match = _SAMPLE.match(line)
    if match is None:
        return None, line
    numbers = line[match.end(1) :]
    remainder = numbers.translate(_NUMBERS)
    return (match[1], numbers) if remainder in ("", "NaN", '"values":"timestamps":') else (None, line)


_WORD_BREAK = re.compile(rb"[\s,;]")


def pieces(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield a stream in pieces of whole lines, without splitting private keys. A line longer than MAX_LINE_BYTES is
    split between words."""
    carry = b""
    while data := stream.read(PIECE_BYTES):
        carry = carry + data if carry else data
        end = carry.rfind(b"\n") + 1
        begin = carry.rfind(b"-----BEGIN", 0, end)
        if begin >= 0 and b"-----END" not in carry[begin:end] and len(carry) - begin < 64 << 10:
            end = begin
        if not end and len(carry) >= MAX_LINE_BYTES:
            end = max((match.end() for match in _WORD_BREAK.finditer(carry, len(carry) - 4096)), default=len(carry))
        if end:
            yield carry[:end]
            carry = carry[end:]
    if carry:
        yield carry
