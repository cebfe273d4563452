"""Lines that look like an error and that no parser read.

They are not evidence of a family; they show that the verdict does not account for something that was printed. Only
lines whose words or level mean an error count, not figures, settings, paths or code that merely contain such a word.
"""

from __future__ import annotations

import re

from trackside.logs.error_words import has_error_word, prefilter
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

MAX_TEXT_CHARS = 600
"""A longer line is a dump."""
MAX_BYTES_TO_TRACEBACK = 300
"""A line counts as announcing a traceback if one begins within this many bytes after it."""
_TRACEBACK = b"Traceback (most recent call last)"

_HARMLESS = re.compile(
    r"\b(?:0|no|zero|without)\s{1,3}(?:errors?|failures?|failed|invalid|corrupt(?:ed)?|unexpected|crash(?:es)?)\b"  # counts of none
    r"|\b(?:errors?|fail(?:ed|ures?)?|aborted|killed)\b[\"'\]]?\s{0,3}[:=(]\s{0,3}[\"']?(?:[-+\d.]|none|false|true|null|\[\])"  # figures and settings
    r"|[\w-](?:_|-|\.|/)(?:errors?|fail|failed|failure|abort|killed|timed|invalid)\b|\b(?:errors?|fail|failed|failure|abort|invalid)(?:_|-|/|\.(?=\w))"  # names, paths
    r"|\b(?:mean|absolute|squared|percentage|relative|word|char\w*|prediction|reconstruction|validation|training|test|top-?\d)\s(?:\w+\s)?errors?\b\s{0,3}(?:\(|rate|is|was|[:=]|\d)"  # measures
    r"|\b(?i:error rate|errors? (?:rate|is|was)|errors?)\b\s{0,3}(?:\([\w%]{1,16}\))?\s{0,3}[:=]?\s{0,3}(?:[-+]?[\d.]|nan\b|inf\b)"
    r"|^#\s+size\s+count\b"  # the heading of nccl-tests' table
    r"|\bwith the exception of\b|\bexceptions?[\"']?\s{0,3}[:=]\s{0,3}(?:\d|none|false|true|null|\[\])|\bcritical (?:point|batch|path|section|value)"
    r"|\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE|TRACE)\b|[Ww]arning:|\w*Warning\b|^\[[WI]\b|\bW\d{4}\b|\bI\d{4}\b|\| ?(?:INFO|DEBUG|WARNING)"
    r"|: [IW] \w+/|Unable to register cu\w+ factory|not a git repository|\bf?no-\w+-err|^frame #\d|\b(?:longer than|more than) the\b"
    r"|^\S{1,300} FAILED\s*$|Root Cause \(first|Error Message Summary|stack trace|Error executing job with overrides|Request ID:|^NumPy \d|compiled using NumPy|The server socket has failed|ProcessGroup\w+\.cpp|socketStartConnect|submit this"  # parts of blocks that others read
    r"|^Failures:$|Exception raised from \w{1,80} at |Exception has occurred: |Exception (?:in|ignored in)\b|root error\(s\) found|RAY_IGNORE_UNHANDLED|\bspank\b|(?i:\bpmix)|:[0-9]{1,6}: in \w"
    r"|^\s{2,}|^\s{0,2}(?:raise|return|except|assert|import|from|def|class|if|for|with|#|//|\+|-|>)\b"
    r"|^\s{0,8}(?:File \"|\^+|~+)|Traceback \(most recent|The above exception|During handling"
    r"|\bif (?:you|this|it)\b|\bplease\b|\bcan(?:'t|not) be (?:used|changed) (?:with|together)|\bfall(?:ing)? ?back\b|\bretry(?:ing)?\b|\bwill be\b|\bskipp(?:ed|ing)\b|\bignor(?:ed|ing)\b|\bdeprecated\b",
)
_GLOG_LEVEL = r"^[EF]\d{4} \d\d:\d\d:\d\d\."
"""An error's level as glog prints it, with date and time: native libraries use it whatever the words are."""
_NATIVE_LEVEL = re.compile(_GLOG_LEVEL)
_LEVEL = re.compile(
    r"(?:^|[\s\[|<(])(?:ERROR|FATAL|CRITICAL|SEVERE|EMERG)(?:$|[\s\]|>):])|^\s*\[(?:Error|Exception|Fatal)\] |"
    + _GLOG_LEVEL
)

_ABOUT_EARLIER_ERRORS = re.compile(r"failed runs in (?:a row|the first)")
"""What a supervisor says of the failures above it."""

_TABLE_ROW = re.compile(r"^\S[\w.() -]{0,40}?(?: {2,}|\t)[Nn]ot (?:found|installed|available)\s*$")
"""What a program that lists its environment does not find: it prints the same when all is well."""
_CGROUPS = re.compile(r"^slurmstepd\S{0,80}: error: .*cgroup")
"""Trouble of Slurm with its own control groups when it cleans up after a job."""
_TRACKER = re.compile(r"^\W{0,4}wandb: ")
"""An experiment tracker that speaks of itself: the run goes on without it."""
_STATEMENT = re.compile(
    r"^[^\w\s]{0,8}\s{0,4}(?:\[[^\]]{1,60}\]\W{0,4}){0,3}(?:[\w./()-]{1,120}: ?){0,4}(?:an? |the |i/o |\w{1,30} )?"
    r"(?:errors?|fatal|failed|failure|exception|oops|something went wrong|out of memory|oom(?:killed)?|(?:gpu |cuda )?memory exhausted|killed by|could(?: not|n't)|cannot|can't|unable to|no such|aborted|aborting|invalid)\b"
    r"|(?:(?<!command )not found|(?:does not|doesn't) exist|no such file or directory|permission denied|out of (?:bounds|range))\b"
    r"[^\w]{0,8}(?:\S{1,200}|(?:(?:exit|abort|quit|stopp)(?:s|ed|ing)?|giving up)\b.{0,40})?\W{0,8}$"
    r"|^[A-Z]\w{1,60}(?:Error|Exception)$"
    r"|^\W{0,8}(?:erreur|échec|fehler|errore|fallo|falló|erro|falha|błąd|ошибка|hata)\b|^\W{0,8}\w{0,6}(?:错误|失败|錯誤|失敗|エラー|오류|실패)",
    re.IGNORECASE,
)
"""A sentence that states an error: one that begins with it, or ends with what is missing."""
_PARTING = re.compile(
    r"\W*(?:(?:now )?(?:exit|abort|quit|terminat|stopp|shutt?)(?:s|ed|e|ing)?\b(?: down| now)?|bye|goodbye|giving up)?\W*$",
    re.IGNORECASE,
)
"""A blank line, or one by which a program says that it exits."""
MAX_PARTING_LINES = 3
"""Such lines after a program's last words, at most."""
MAX_PARTING_BYTES = 500
"""Bytes of these lines, at most."""

PARSER = Parser("unread", "lines that look like an error and that no parser read", "system", residual=True)


@PARSER.pattern(
    b"(?:" + prefilter() + rb"|[EF]\d{4} \d\d:\d\d:\d\d\.)",
    safety="Does not match figures and settings whose name contains an error word, warnings, code, paths, tracebacks (read elsewhere) and advice.",
    matches=(
        "ABORT!!! Out of all 4 trainers, the trainer process with rank=[0] was aborted.",
        "ERROR: could not connect to the license server",
        "[2026-01-01 10:00:00] [ERROR] worker 3 stopped",
        "train.sh: Abgebrochen",
        "cp: cannot stat 'x.pt'",
        "E0611 09:14:02.118273  2211 place.cc:202] Bad device ordinal 3: this host offers 2 devices",
        "error: unrecognized arguments: --foo",
        "Exception: 3",
        "MemoryError",
        "CRITICAL - giving up after 3 tries",
        "Target 3 is out of bounds.",
        "panic: runtime error: index out of range [5] with length 3",
        "The label file is missing: x.csv not found\nExiting...",
    ),
    avoids=(
        "validation error: 0.0312",
        "0 errors, 3 warnings",
        "error: 0.031",
        "Error (%): 12.5",
        "exceptions: none",
        "fail_on_error: True",
        "errors=0 failed=0",
        "WARNING: could not find cuda drivers, GPU will not be used.",
        "    raise ValueError('failed')",
        "log file: runs/error.log",
        "Exception during training:\nTraceback (most recent call last):",
        "mean absolute error 0.31",
        "cv2                     Not found",
        "slurmstepd: error: Unable to move pid 7193 to init root cgroup /sys/fs/cgroup",
        "2026-01-01 10:00:00,857 - wandb.wandb_agent - ERROR - Detected 3 failed runs in the first 60 seconds, shutting down.",
        "2026-01-01 10:00:00,857 - wandb.wandb_agent - ERROR - Detected 5 failed runs in a row, shutting down",
    ),
    caseless=True,
)
def _unread_error(line: Line) -> Event | None:
    text = line.text
    if line.offset <= line.notes("python").get("end", -1):
        return None  # inside a traceback
    if line.buffer.find(_TRACEBACK, line.end, line.end + MAX_BYTES_TO_TRACEBACK) >= 0:
        return None  # announces a traceback
    if len(text) > MAX_TEXT_CHARS or not (has_error_word(text) or _NATIVE_LEVEL.search(text)):
        return None
    if _ABOUT_EARLIER_ERRORS.search(text) or (_HARMLESS.search(text) and not _LEVEL.search(text)):
        return None
    if _TABLE_ROW.match(text) or _CGROUPS.match(text):
        return None
    parting_lines = _parting_lines(line)
    is_severe = not _TRACKER.search(text) and (
        _LEVEL.search(text) or (parting_lines is not None and _STATEMENT.search(text))
    )
    return line.event("unread_error", severe=True if is_severe else None, parting_lines=parting_lines or None)


def _parting_lines(line: Line) -> int | None:
    """How many lines end the log below this one without saying more than that the program exits; None if others follow."""
    if not line.is_near_end(MAX_PARTING_BYTES):
        return None
    rest = [other.text for other in line.following(MAX_PARTING_LINES + 1)]
    return len(rest) if len(rest) <= MAX_PARTING_LINES and all(map(_PARTING.match, rest)) else None
