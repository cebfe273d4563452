"""A stand-in for VictoriaLogs: the part of LogsQL that the client and the recorded queries use."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping

from tests.stores.logs.servers import SECOND, Answer, Entry, Params, Server, labels_match, matchers_of, refused

Row = Mapping[str, str]
Test = Callable[[Row], bool]
_TOKEN = re.compile(r'\s*(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}|"(?:[^"\\]|\\.)*"|:=|:~|:in\(|[:(),!~*|]|[\w.@-]+)')


class VictoriaLogsServer(Server):
    """All labels of an entry identify its stream, unless ``load`` names fewer."""

    def __init__(self, *entries: Entry) -> None:
        super().__init__(*entries)
        self.rows: list[dict[str, str]] = []
        for entry in entries:
            self.load(entry, tuple(entry.labels))

    def load(self, entry: Entry, stream_fields: tuple[str, ...]) -> None:
        labels = {**entry.labels, **entry.more}
        inside = ",".join(f"{name}={json.dumps(labels[name])}" for name in sorted(stream_fields) if name in labels)
        self.rows.append({"_time": rfc(entry.time_ns), "_stream": f"{{{inside}}}", "_msg": entry.text, **labels})

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        arguments = dict(params)
        endpoint = path.removeprefix("/select/logsql/")
        if endpoint not in ("query", "hits", "field_names", "field_values", "streams"):
            return refused(f'unsupported path requested: "{path}"\n')
        if method != ("POST" if endpoint == "query" else "GET"):
            return self.unknown(f"{method} {path}")
        text, *pipes = split_pipes(arguments["query"])
        try:
            passes = Filter(text).parse()
        except ValueError:
            return self.unknown(arguments["query"])
        start, end = nanoseconds(arguments["start"]), nanoseconds(arguments["end"])
        rows = [row for row in self.rows if start <= nanoseconds(row["_time"]) <= end and passes(row)]
        if endpoint == "query":
            return self._query(rows, pipes, arguments)
        counts: Counter[str] = Counter()
        if endpoint == "hits":
            return self._hits(rows, arguments)
        for row in rows:
            if endpoint == "field_names":
                counts.update((*row, "_stream_id"))
            elif endpoint == "field_values":
                counts[row.get(arguments["field"], "")] += 1
            else:
                counts[row["_stream"]] += 1
        values = [{"value": value, "hits": count} for value, count in counts.most_common()]
        return Answer(200, json.dumps({"values": values}).encode())

    def _query(self, rows: list[dict[str, str]], pipes: list[str], arguments: Mapping[str, str]) -> Answer:
        # Without a sort, VictoriaLogs returns rows in any order; here by stream, newest first.
        rows = sorted(rows, key=lambda row: (row["_stream"], -nanoseconds(row["_time"])))
        for pipe in pipes:
            if pipe == "sort by (_time)":
                rows.sort(key=lambda row: nanoseconds(row["_time"]))
            elif match := re.fullmatch(r"limit (\d+)", pipe):
                rows = rows[: int(match[1])]
            elif match := re.fullmatch(r"fields (.*)", pipe):
                names = [name.strip() for name in match[1].split(",")]
                rows = [{name: row[name] for name in names if name in row} for row in rows]
            elif match := re.fullmatch(r"stats by \(([^)]*)\) count\(\) (\w+)(, max\(_time\) (\w+))?", pipe):
                rows = _stats(rows, [name.strip().strip('"') for name in match[1].split(",")], match[2], match[4])
            elif pipe.startswith("nothing"):
                return refused(f'cannot parse query [{arguments["query"]}]: unexpected pipe "nothing"')
            else:
                return self.unknown(arguments["query"])
        rows = rows[: int(arguments.get("limit", len(rows)))]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return Answer(200, text.encode(), "application/stream+json")

    def _hits(self, rows: list[dict[str, str]], arguments: Mapping[str, str]) -> Answer:
        match = re.fullmatch(r"(\d+)(s|m)", arguments["step"])
        assert match is not None
        step = int(match[1]) * (60 if match[2] == "m" else 1) * SECOND
        groups: dict[str, Counter[int]] = {}
        for row in rows:
            time_ns = nanoseconds(row["_time"]) // step * step
            groups.setdefault(row.get(arguments.get("field", ""), ""), Counter())[time_ns] += 1
        hits = [
            {
                "fields": {arguments["field"]: value} if "field" in arguments else {},
                "timestamps": [rfc(time_ns) for time_ns in sorted(counts)],
                "values": [counts[time_ns] for time_ns in sorted(counts)],
                "total": sum(counts.values()),
            }
            for value, counts in sorted(groups.items())
        ]
        return Answer(200, json.dumps({"hits": hits}).encode())


def _stats(rows: list[dict[str, str]], by: list[str], count: str, last: str | None) -> list[dict[str, str]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name, "") for name in by), []).append(row)
    stats = []
    for key, members in sorted(groups.items()):
        row = {name: value for name, value in zip(by, key, strict=True) if value}
        row[count] = str(len(members))
        if last:
            row[last] = max((member["_time"] for member in members), key=nanoseconds)
        stats.append(row)
    return stats


class Filter:
    """A LogsQL filter as a predicate of rows; ValueError for unknown syntax."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(text)
            self._tokens.append(match[1])
            position = match.end()

    def parse(self) -> Test:
        test = self._either()
        if self._tokens:
            raise ValueError(f"unexpected: {self._tokens}")
        return test

    def _next(self) -> str:
        if not self._tokens:
            raise ValueError("it ends early")
        return self._tokens.pop(0)

    def _either(self) -> Test:
        tests = [self._all()]
        while self._tokens[:1] == ["or"]:
            self._next()
            tests.append(self._all())
        return lambda row: any(test(row) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._tokens and self._tokens[0] not in ("or", ")"):
            tests.append(self._one())
        return lambda row: all(test(row) for test in tests)

    def _one(self) -> Test:
        token = self._next()
        if token == "!":
            test = self._one()
            return lambda row: not test(row)
        if token == "(":
            test = self._either()
            if self._next() != ")":
                raise ValueError("no closing bracket")
            return test
        if token == "*":
            return lambda row: True
        if token == "~":
            pattern = re.compile(json.loads(self._next()))
            return lambda row: pattern.search(row["_msg"]) is not None
        if token.startswith("{"):
            matchers = matchers_of(token[1:-1])
            return lambda row: labels_match(labels_of(row["_stream"]), matchers)
        name = json.loads(token) if token.startswith('"') else token
        if self._tokens[:1] and self._tokens[0] in (":=", ":~", ":in(", ":"):
            return self._field(name, self._next())
        words = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        return lambda row: words.search(row["_msg"]) is not None

    def _field(self, name: str, operator: str) -> Test:
        value = json.loads(self._next())
        if operator == ":=":
            return lambda row: row.get(name, "") == value
        if operator == ":~":
            pattern = re.compile(value)
            return lambda row: pattern.search(row.get(name, "")) is not None
        if operator == ":in(":
            values = [value]
            while (token := self._next()) == ",":
                values.append(json.loads(self._next()))
            if token != ")":
                raise ValueError("no closing bracket")
            return lambda row: row.get(name, "") in values
        if value:
            raise ValueError("a phrase in a field")
        return lambda row: not row.get(name)


def labels_of(stream: str) -> dict[str, str]:
    return {name: value for name, _, value in matchers_of(stream[1:-1])}


def split_pipes(query: str) -> list[str]:
    """The filter, then each pipe."""
    parts, position = [""], 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|\|', query):
        if match[0] == "|":
            parts[-1] += query[position : match.start()]
            parts.append("")
        else:
            parts[-1] += query[position : match.end()]
        position = match.end()
    parts[-1] += query[position:]
    return [part.strip() for part in parts]


def nanoseconds(text: str) -> int:
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", text)
    assert match is not None, text
    seconds = int(dt.datetime.fromisoformat(match[1] + "+00:00").timestamp())
    return seconds * SECOND + int((match[2] or "0").ljust(9, "0"))


def rfc(time_ns: int) -> str:
    """As VictoriaLogs writes times: no zeros at the end."""
    seconds, rest = divmod(time_ns, SECOND)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
