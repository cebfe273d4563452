"""Single lines of a traceback: frames, last lines, ``raise`` statements; of Python, rich and IPython."""

from __future__ import annotations

import re

StackFrame = tuple[str, str, str, str]
"""(file, line, function, code)"""

PROGRESS_BAR = re.compile(r"\d%\||it/s|s/it|\?, ?\?")
"""A part of a tqdm bar."""
_FRAME = re.compile(r'\s*(?:\|\s*)?File "([^"]{1,500})", line (\d{1,7})(?:, in (\S.{0,200}))?')
_RICH_FRAME = re.compile(r"[│|]\s{1,4}(\S[^│|]{0,300}?):(\d{1,7}) in(?: ([^\s│|]{1,120}))?\s*[│|]?$")
_IPYTHON_FRAME = re.compile(
    r"(?:File )?(?P<file>[~/.<][^:]{0,300}?)(?::(?P<line>\d{1,7}),)? in (?P<func>[\w.<>]{1,120})(?:\(|, in )"
    r"|(?:Cell |Input )In ?\[(?P<cell>\d{1,6})\], (?:line (?P<cellline>\d{1,7})|in )"
)
_LAST_LINE = re.compile(
    r"(?P<type>[A-Za-z_][\w.]{0,150}(?:\.<locals>\.\w{1,60})?(?:\([\w.]{1,80}\))?)(?:: ?(?P<message>.*))?$", re.DOTALL
)
_TYPE_ENDING = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Failure|Fault|Timeout|Expired|Iteration|Invalid|Group|Raised|Died|Exceeded|"
    r"Conflict|Mismatch|Corruption|Denied|NotFound|Traceback|Abort|Aborted|Empty|Full|\.gaierror|\.herror|\.timeout|"
    r"\.error)(?:\([\w.]+\))?$"
)
"""How the names of exceptions end."""
_NO_TYPE = re.compile(r"[a-z]\w+|[A-Z_\d]+|Error|Exception|Failure|Timeout|Group|Empty|Full|Invalid|Exit|www\..*")
"""Words that look like a type, but are none on their own."""
_TYPE = r"(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{1,60}?(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Invalid)"
_TORN = re.compile(
    rf"({_TYPE})(?:: )?(?:\1(?:: )?|{_TYPE}(?=(?:: ){{2}})){{1,64}}(?:: ){{0,64}}(.{{0,4000}})$", re.DOTALL
)
"""A type that several ranks printed at once: each rank writes the type, the colon and the message on its own."""
_RAISE = re.compile(
    rf"raise (?P<type>{_TYPE}|[A-Z]\w{{2,60}})(?:\((?:(['\"])(?P<message>[^'\"{{}}]{{1,300}})\2\)?)?|$| from )"
)
_ESCAPED_END = re.compile(r'(?<!\\)"')
_OTHER_LINE = re.compile(
    r"\[?[(]?\d{2,4}[-/]\d\d[-/]\d\d[T _]|\[?\d\d:\d\d:\d\d|\[?[IWEF]\d{4} |.{0,80}?\d%\|"
    r"|\[?\d{1,4}[-/.]\d{1,2}(?:[-/.]\d{2,4})?[T _,]{1,2}\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\[[DIWEF](?:\d{3,8} [\d:.]{5,20}){0,1}(?: \d{1,10})? \S{1,80}:\d{1,6}\]|-{3,20}(?:Begin|End) "
    r"|[a-z][\w.-]{1,20}: warning: |[\w./-]{1,100}: \d{1,6}: |(?:real|user|sys)\t\d"
    r"|(?:\[rank: \d{1,6}\] )?(?:Received|Caught|Got|Trapped|Handling) (?:signal |Signals\.|SIG)"
    r"|(?:\(\S{1,40}\) ){0,3}\w\S{0,40}@\S{1,60}:\S{0,200}[$#] "
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|Traceback \(most recent|[│|╭╰+]"
    r"|(?:srun|slurmstepd|wandb|mpirun|salloc|sbatch): |\[\w{1,20}:\d{1,7}(?::\d{1,7})?\] |\S{1,60} (?:\[\d{1,3}\] )?NCCL "
    r"|Exception (?:ignored|raised) |frame #\d|\[frame \d|Stacktrace \(|C\+\+ CapturedTraceback|={20}|-{20}|\*{20}|(?:={3,19}|-{3,19}|\*{3,19}|#{3,19}) ?[A-Z]"
    r"|\{'(?:loss|eval_|train_|grad_norm|reward|epoch)|:::MLLOG|[Ee]xit(?:ing|ed| status| code)\b|Root Cause "
    r"|terminate called|\S{1,200}:\d{1,6}: \w{1,40}Warning: "
    r"|Set the environment variable HYDRA_FULL_ERROR|\+ |[\w./-]{1,100}: line \d{1,6}: |(?:Epoch|[Ss]tep|iter)\b"
)
"""How lines begin that are not part of a message."""
_BEFORE_GLUED = re.compile(rf"[^\n]{{1,2000}}?[\])%|}}\d](?={_TYPE}(?:: |$))")
"""The text before a last line that was printed behind a progress bar without a newline."""


def exception_line(text: str) -> tuple[str, str] | None:
    """(type, message) if a line looks like a traceback's last: a class name, then optionally ``: message``."""
    text = text.rstrip()
    match = _LAST_LINE.match(untangle(text))
    if match is None:
        return None
    name, message = match["type"], match["message"]
    last = name.split("(")[0].rsplit(".", 1)[-1]
    is_dotted = "." in name and last[:1].isupper() and not last.isupper() and message is not None
    is_exception = name == "Exception" and bool(message)
    if not is_exception and ((_TYPE_ENDING.search(name) is None and not is_dotted) or _NO_TYPE.fullmatch(name)):
        return None
    return name, message or ""


def exception_line_behind_bar(text: str) -> tuple[str, str] | None:
    """(type, message) of a last line that was printed behind a progress bar without a newline."""
    bar = _BEFORE_GLUED.match(text)
    return None if bar is None else exception_line(text[bar.end() :])


def untangle(text: str) -> str:
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


def exception_raised_by(code: str) -> tuple[str, str] | None:
    """(type, message) of the exception that a ``raise`` statement names; the message only if it is a literal."""
    match = _RAISE.match(code)
    if match is None or exception_line(match["type"] + ": x") is None:
        return None
    return match["type"], match["message"] or ""


def starts_something_else(text: str) -> bool:
    """Whether a line cannot belong to the message above it: a log line, a progress bar, a native stack."""
    return _OTHER_LINE.match(text) is not None


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
