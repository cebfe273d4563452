"""From the lines after "Traceback (most recent call last)" to exceptions: one writer's lines at a time.

A :class:`TracebackReader` takes the lines of one writer and hands over each finished chain of :class:`ParsedException`.
It reads plain tracebacks, chains, exception groups, rich's boxes, IPython's pages, nested ones of Ray and DataLoader,
and unlabeled ranks that print over each other (their frames are then merged, and each last line counts).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from trackside.logs.line import Line

MAX_MESSAGE_CHARS = 2_000
"""Characters of a message that are kept."""
MAX_CONTINUATION_LINES = 40
"""Lines after the first that a message may have."""
MAX_FRAMES = 200
"""Frames of one traceback that are kept while it is read (recursion errors print a thousand)."""
MAX_STRAY_LINES = 80
"""Lines of other writers that may stand inside a traceback before it counts as cut off."""

StackFrame = tuple[str, str, str, str]
"""(file, line, function, code)"""

_FRAME = re.compile(r'\s*(?:\|\s*)?File "([^"]{1,500})", line (\d{1,7})(?:, in (\S.{0,200}))?')
_RICH_FRAME = re.compile(r"[│|]\s{1,4}(\S[^│|]{0,300}?):(\d{1,7}) in(?: ([^\s│|]{1,120}))?\s*[│|]?$")
_IPYTHON_FRAME = re.compile(
    r"(?:File )?(?P<file>[~/.<][^:]{0,300}?)(?::(?P<line>\d{1,7}),)? in (?P<func>[\w.<>]{1,120})(?:\(|, in )"
    r"|(?:Cell |Input )In ?\[(?P<cell>\d{1,6})\], (?:line (?P<cellline>\d{1,7})|in )"
)
_MARKED_CODE = re.compile(r"(?:-{1,6}>|[│|]\s*❱)\s*(\d{1,7})\s(.{0,300})")
_TYPE = re.compile(
    r"(?P<type>[A-Za-z_][\w.]{0,150}(?:\.<locals>\.\w{1,60})?(?:\([\w.]{1,80}\))?)(?:: ?(?P<message>.*))?$", re.DOTALL
)
_SUFFIX = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Failure|Fault|Timeout|Expired|Iteration|Invalid|Group|Raised|Died|Exceeded|"
    r"Conflict|Mismatch|Corruption|Denied|NotFound|Traceback|Abort|Aborted|Empty|Full|\.gaierror|\.herror|\.timeout|"
    r"\.error)(?:\([\w.]+\))?$"
)
_NO_TYPE = re.compile(r"[a-z]\w+|[A-Z_\d]+|Error|Exception|Failure|Timeout|Group|Empty|Full|Invalid|Exit|www\..*")
_LINK = re.compile(r"(?:During handling of the above exception|The above exception was the direct cause)")
_NESTED = re.compile(r"-- Process \d+ terminated|'{3}$|\"{3}$|Original Traceback")
_NESTING_TYPE = re.compile(r"RayTaskError|RemoteTraceback|ProcessRaised|TrainingFailedError|FailedJobError")
_RULER = re.compile(r"-{10,60}$")
_GROUP = re.compile(r"[ ]{0,40}[|+](?:-[-+ \d.]*|[ ]|$)")
_NAME = r"(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{1,60}?(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Invalid)"
_TORN = re.compile(
    rf"({_NAME})(?:: )?(?:\1(?:: )?|{_NAME}(?=(?:: ){{2}})){{1,64}}(?:: ){{0,64}}(.{{0,4000}})$", re.DOTALL
)
"""A type that several ranks printed at once: each rank writes the type, the colon and the message on its own."""
_GLUED = re.compile(rf"[^\n]{{1,2000}}?[\])%|}}\d](?={_NAME}(?:: |$))")
"""What stands before a last line that was printed behind a progress bar without a newline."""
_RAISE = re.compile(
    rf"raise (?P<type>{_NAME}|[A-Z]\w{{2,60}})(?:\((?:(['\"])(?P<message>[^'\"{{}}]{{1,300}})\2\)?)?|$| from )"
)
_ONE_LINE = re.compile(
    r"(?:\w{1,60}\.){0,6}(?:Key|Index|Name|Type|Attribute|UnboundLocal|ZeroDivision|Recursion|ModuleNotFound)Error$"
)
"""Types whose message has further lines only if the first one announces them."""
_SYSTEM_MESSAGE = re.compile(r"\[Errno -?\d{1,3}\] ")
_ANNOUNCES = re.compile(r"[:,(\[{\\]\s*$")
_ESCAPED_END = re.compile(r'(?<!\\)"')
_STARTER = re.compile(
    r"\[?[(]?\d{2,4}[-/]\d\d[-/]\d\d[T _]|\[?\d\d:\d\d:\d\d|\[?[IWEF]\d{4} |.{0,80}?\d%\|"
    r"|\[?\d{1,4}[-/.]\d{1,2}(?:[-/.]\d{2,4})?[T _,]{1,2}\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\[[DIWEF](?:\d{3,8} [\d:.]{5,20}){0,1}(?: \d{1,10})? \S{1,80}:\d{1,6}\]|-{3,20}(?:Begin|End) "
    r"|[a-z][\w.-]{1,20}: warning: |[\w./-]{1,100}: \d{1,6}: |(?:real|user|sys)\t\d"
    r"|(?:\[rank: \d{1,6}\] )?(?:Received|Caught|Got|Trapped|Handling) (?:signal |Signals\.|SIG)"
    r"|(?:\(\S{1,40}\) ){0,3}\w\S{0,40}@\S{1,60}:\S{0,200}[$#] "
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|Traceback \(most recent|[│|╭╰+]"
    r"|(?:srun|slurmstepd|wandb|mpirun|salloc|sbatch): |\[\w{1,20}:\d{1,7}(?::\d{1,7})?\] |\S{1,60} NCCL "
    r"|Exception (?:ignored|raised) |frame #\d|\[frame \d|Stacktrace \(|C\+\+ CapturedTraceback|={20}|-{20}|\*{20}|(?:={3,19}|-{3,19}|\*{3,19}|#{3,19}) ?[A-Z]"
    r"|\{'(?:loss|eval_|train_|grad_norm|reward|epoch)|:::MLLOG|[Ee]xit(?:ing|ed| status| code)\b|Root Cause "
    r"|terminate called|\S{1,200}:\d{1,6}: \w{1,40}Warning: "
    r"|Set the environment variable HYDRA_FULL_ERROR|\+ |[\w./-]{1,100}: line \d{1,6}: |(?:Epoch|[Ss]tep|iter)\b"
)
_PARAGRAPHS = re.compile(
    r"Request ID|generating the dataset|hugging ?face|\bHub\b|validation error|when calling",
    re.IGNORECASE,
)
_SALVAGE = re.compile(r"(?<![\w.])((?:\w{1,40}\.){0,6}[A-Z]\w{2,60}(?:Error|Exception))(?=\W|$)(?:: (.{1,300}))?")


class TracebackState(enum.Enum):
    """Where in a traceback a writer is."""

    FRAMES = enum.auto()
    MESSAGE = enum.auto()
    ENDED = enum.auto()  # a blank line followed the message: a chain's link may come
    LINKED = enum.auto()  # the link was read: the next traceback belongs to this chain


@dataclass(slots=True)
class ParsedException:
    """One exception as a traceback shows it; its frames are outermost first."""

    type: str
    message: list[str]
    frames: list[StackFrame]
    line: Line
    colon: bool = True
    """Whether a colon follows the type: Python prints none if the message is empty."""

    @property
    def text(self) -> str:
        """The message with its continuation lines."""
        return "\n".join(self.message).strip()[:MAX_MESSAGE_CHARS]


@dataclass(slots=True)
class TracebackReader:
    """Reads one writer's lines inside a block of interleaved tracebacks."""

    header: Line
    emit: Callable[[TracebackReader, list[ParsedException]], None]
    """Receives each finished chain, oldest exception first."""
    on_exception_line: Callable[[Line], None]
    """Called with each line that was read as an exception, so that nothing reads it again."""
    prefix: str = ""
    shape: re.Pattern[str] | None = None
    """Matches what a logger prints before each line of this traceback."""
    shaped: bool = False
    """Whether lines with that shape came."""
    labeled: bool = False
    """Whether torch's excepthook labels each line: all lines with the label belong to the exception."""
    in_summary: bool = False
    group: bool = False
    state: TracebackState = TracebackState.FRAMES
    open: int = 1
    """Tracebacks that began and did not end; more than one if unlabeled writers interleave."""
    frames: list[StackFrame] = field(default_factory=list)
    chain: list[ParsedException] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    emitted: int = 0
    continued: int = 0
    nested: bool = False
    fresh: bool = True
    """Whether frames came since the last exception line."""
    last_line: Line | None = None
    """The last line that was read in a frame."""

    @property
    def closed(self) -> bool:
        """Whether nothing more can belong to it."""
        return self.open <= 0

    def head(self, quoted: bool) -> bool:
        """Take a header line of the same writer: a chain's next link, a nested traceback, or another rank printing
        over this one. False if it starts a separate traceback: this one is then finished."""
        if self.state is TracebackState.LINKED or self.group:
            self.state, self.frames = TracebackState.FRAMES, []
        elif self.chain and self.state is not TracebackState.FRAMES:
            if not (quoted or self.nested):
                self._finish()
                return self._join_interleaved()
            self._nest()
        else:
            return self._join_interleaved()
        return True

    def feed(self, line: Line, text: str) -> bool:
        """Take a line; False if it belongs to another writer."""
        if self.group:
            if text.strip() and _GROUP.match(text) is None:
                self._finish()
                return False
            text = _GROUP.sub("", text, count=1)
        elif self.prefix.isspace():
            text = text.removeprefix(self.prefix)  # the whole traceback is indented
        if self.state is TracebackState.FRAMES:
            return self._in_frames(line, text)
        if self.state is TracebackState.MESSAGE:
            return self._in_message(line, text)
        return self._after_message(line, text)

    def close(self) -> None:
        """No more lines come: hand over what was read."""
        if self.chain:
            self._finish()
        elif self.frames and not self.emitted:
            self._salvage()
        self.open = 0

    # -- one method per state

    def _in_frames(self, line: Line, text: str) -> bool:
        frame = read_frame(text)
        if frame is not None:
            self._add_frame(frame)
            return True
        if match := _MARKED_CODE.match(text):
            if self.frames:
                file, number, function, _ = self.frames[-1]
                self.frames[-1] = (file, number or match[1], function, match[2])
            return True
        parsed = exception_line(text.strip() if self.in_summary else text)
        if parsed is None and self.frames and (bar := _GLUED.match(text)) is not None:
            parsed = exception_line(text[bar.end() :])
        if parsed is not None:
            self._begin(line, *parsed)
            return True
        self.last_line = line
        if not text.strip() or text[0] in " \t│╰╭|":
            if self.frames and text.strip(" ^~│") and not self.frames[-1][3]:
                self.frames[-1] = (*self.frames[-1][:3], text.strip()[:300])
            return True
        self.stray.append(text[:500])
        if len(self.stray) > MAX_STRAY_LINES * self.open:
            self.close()
        return False

    def _in_message(self, line: Line, text: str) -> bool:
        stripped = text.strip()
        if not stripped:
            self.state = TracebackState.ENDED
        elif _LINK.match(stripped):
            self.state = TracebackState.LINKED
        elif _NESTED.match(stripped) or (_RULER.match(stripped) and _NESTING_TYPE.search(self.chain[-1].type)):
            self.nested = True
        elif read_frame(text) is not None:
            return self._frames_again(line, text)
        elif (parsed := exception_line(stripped if self.in_summary else text)) is not None and self.open > 1:
            self._finish()
            self._begin(line, *parsed)
        elif self._complete(text) or self._foreign(text, parsed is not None):
            return self._leave()
        else:
            self._extend(text)
        return True

    def _after_message(self, line: Line, text: str) -> bool:
        stripped = text.strip()
        if not stripped or self.state is TracebackState.LINKED:
            return True
        if _LINK.match(stripped):
            self.state = TracebackState.LINKED
            return True
        if _NESTED.match(stripped):
            self.nested = True
            return True
        last = self.chain[-1]
        may_continue = self.labeled or not last.text or text.startswith(("  ", "\t")) or _PARAGRAPHS.search(last.text)
        foreign = not may_continue or self._complete(text) or self._foreign(text, exception_line(text) is not None)
        if self.in_summary or foreign:
            return self._leave()
        self._extend("\n" + text)
        self.state = TracebackState.MESSAGE
        return True

    # -- steps that the states share

    def _join_interleaved(self) -> bool:
        """Take the header as another rank's that prints over this one; False if this traceback has ended."""
        if self.open <= 0 or not self.fresh:
            self.close()
            return False
        self.open += 1
        return True

    def _complete(self, text: str) -> bool:
        """Whether the message cannot have this further line: Python prints no colon if there is no message, and the
        interpreter's own messages have one line."""
        last = self.chain[-1]
        if self.labeled or self.in_summary or text.startswith(("  ", "\t")):
            return False
        if not last.text:
            return not last.colon
        one_line = _ONE_LINE.match(last.type) or _SYSTEM_MESSAGE.match(last.text)
        return one_line is not None and self.continued == 0 and _ANNOUNCES.search(last.text) is None

    def _foreign(self, text: str, exception: bool) -> bool:
        if self.in_summary and not text.startswith("  "):
            return True
        return (
            self.continued >= MAX_CONTINUATION_LINES or (exception and not self.labeled) or starts_something_else(text)
        )

    def _leave(self) -> bool:
        self._finish()
        return False

    def _begin(self, line: Line, name: str, message: str) -> None:
        self.on_exception_line(line)
        self.stray.clear()
        self.state, self.fresh, self.nested, self.continued = TracebackState.MESSAGE, False, False, 0
        if self.group and self.chain and "Group" not in self.chain[-1].type:
            return  # only the first leaf of a group is kept
        colon = not line.full.rstrip().endswith(name)
        self.chain.append(ParsedException(name, [message], list(self.frames), line, colon))
        if self.open <= 1:
            self.frames = []

    def _nest(self) -> None:
        """The exception just read only wraps another process's: continue with the frames of that one."""
        outer = self.chain.pop()
        self.frames = outer.frames + self.frames
        self.state, self.nested = TracebackState.FRAMES, False

    def _frames_again(self, line: Line, text: str) -> bool:
        if self.open > 1:
            self._finish()
        elif self.chain and _NESTING_TYPE.search(self.chain[-1].type):
            self._nest()
        else:
            return self._leave()
        return self._in_frames(line, text)

    def _add_frame(self, frame: tuple[str, str, str]) -> None:
        self.fresh = True
        if self.open > 1 and any(other[:3] == frame for other in self.frames):
            return  # ranks that print over each other have the same frames
        if len(self.frames) >= MAX_FRAMES:
            del self.frames[MAX_FRAMES // 4 : MAX_FRAMES // 2]
        self.frames.append((*frame, ""))

    def _extend(self, text: str) -> None:
        self.continued += 1
        if not self.group:
            self.chain[-1].message.append(text.rstrip()[:MAX_MESSAGE_CHARS])

    def _finish(self) -> None:
        chain, self.chain = self.chain, []
        self.open -= 1
        self.state, self.nested = TracebackState.FRAMES, False
        if chain:
            self.emitted += 1
            self.emit(self, chain)

    def _salvage(self) -> None:
        """Without a last line: find the exception's name somewhere in the stray lines, which ranks printed into each
        other's, or in the statement that raised it."""
        for text in self.stray:
            if match := _SALVAGE.search(text):
                self.chain.append(ParsedException(match[1], [match[2] or ""], self.frames, self.header))
                self._finish()
                return
        if (parsed := raised(self.frames[-1][3])) is not None:
            self.chain.append(ParsedException(parsed[0], [parsed[1]], self.frames, self.last_line or self.header))
            self._finish()


def exception_line(text: str) -> tuple[str, str] | None:
    """(type, message) if a line looks like a traceback's last: a class name, then optionally ``: message``."""
    text = text.rstrip()
    match = _TYPE.match(untangled(text))
    if match is None:
        return None
    name, message = match["type"], match["message"]
    last = name.split("(")[0].rsplit(".", 1)[-1]
    dotted = "." in name and last[:1].isupper() and not last.isupper() and message is not None
    plain = name == "Exception" and bool(message)  # a bare Exception with a message
    if not plain and ((_SUFFIX.search(name) is None and not dotted) or _NO_TYPE.fullmatch(name)):
        return None
    return name, message or ""


def untangled(text: str) -> str:
    """A last line that several ranks printed into each other, as one rank printed it."""
    match = _TORN.match(text)
    if match is None:
        return text
    name, message = match[1], match[2].strip()
    copies = text.count(name, 0, match.start(2))
    size = len(message) // copies if copies else 0
    if size and message == message[:size] * copies:
        message = message[:size]
    elif ": :" not in text and f"{name}{name}" not in text:
        return text  # a message that begins with its own type
    return f"{name}: {message}" if message else name


def raised(code: str) -> tuple[str, str] | None:
    """(type, message) of the exception that a ``raise`` statement names; the message only if it is a literal."""
    match = _RAISE.match(code)
    if match is None or exception_line(match["type"] + ": x") is None:
        return None
    return match["type"], match["message"] or ""


def starts_something_else(text: str) -> bool:
    """Whether a line cannot belong to the message above it: a log line, a progress bar, a native stack."""
    return _STARTER.match(text) is not None


def read_frame(text: str) -> tuple[str, str, str] | None:
    """(file, line, function) of a frame line in a traceback of Python, rich or IPython."""
    if 'File "' in text and (match := _FRAME.match(text)):
        return match[1], match[2], (match[3] or "<source>").strip()
    if text[:1] in ("│", "|") and (match := _RICH_FRAME.match(text)):
        return match[1].strip(), match[2], match[3] or "?"  # the function's name is on the next line
    if text[:1] in ("~", "/", ".", "<", "F", "C", "I") and (match := _IPYTHON_FRAME.match(text)):
        if match["cell"]:
            return f"<cell {match['cell']}>", match["cellline"] or "", "<module>"
        return match["file"].strip(), match["line"] or "", match["func"]
    return None


def unescape(text: str) -> list[str]:
    """Lines of a traceback that a JSON logger put into one string, up to the string's end."""
    end = _ESCAPED_END.search(text)
    escaped = text[: end.start()] if end else text
    return escaped.replace('\\"', '"').replace("\\t", "\t").split("\\n")
