"""Messages of a shell, timeout(1) or time(1) about a child that died."""

from __future__ import annotations

import re

from trackside.catalog.signals import TRANSLATED_DESCRIPTIONS, Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.error_words import byte_regexes
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_DEATH = rf"(?P<death>(?i:{exits.SIGNAL_TEXTS}))(?:: \d{{1,2}})?"
_CORE = r"(?P<core>\s+\((?:core|memory) dumped\))?"
_SCRIPT = re.compile(rf"(?:^|: )line \d{{1,7}}:\s+(?P<pid>\d{{1,10}}) {_DEATH}{_CORE}(?:\s|$)")
_JOB = re.compile(rf"^\s*\[\d{{1,4}}\]\s*[+-]?\s+(?P<pid>\d{{1,10}})?\s*{_DEATH}{_CORE}\s+\S")
_ZSH = re.compile(rf"^(?:zsh|bash|sh|dash)(?:: \S{{0,80}})?: {_DEATH}{_CORE}(?:\s|$)")
_BAR = re.compile(
    r"(?:^|\r).{0,400}(?:(?:it/s|s/it|\?it/s)[^\]]{0,80}\]\s?|(?:[\])%|]|\d(?: ?(?:m?s|min|h|[KMG]i?B))?)(?=[A-Z][a-z]+(?: |$)))"
)
"""A progress bar, or a record that ends in a figure, behind which the shell's message was printed without a newline."""
_BARE = re.compile(rf"{_DEATH}{_CORE}")
_WORDS = "|".join(sorted(TRANSLATED_DESCRIPTIONS, key=len, reverse=True))
_LOCALIZED = re.compile(
    rf"(?:^|.{{0,200}}[\s:：](?P<pid>\d{{1,10}})\s+)(?P<death>(?i:{_WORDS}))(?P<core>\s*[(（][^)）]{{1,40}}[)）])?(?:\s|$)"
)
_SIGNALS_ALONE = frozenset({1, 4, 6, 7, 8, 9, 11, 15, 5, 31})

PARSER = Parser("shell", "shell messages", "system")


@PARSER.pattern(
    rb"(Segmentation fault|Killed|Bus error|Aborted|Abort trap|Terminated|Hangup|Illegal instruction|Floating point "
    rb"exception|: line [0-9]{1,7}: {1,4}[0-9]{1,10} [A-Z]|(zsh|bash|sh): [a-z]{3,12} [a-z ]|"
    rb"\[[0-9]{1,3}\] {1,6}[0-9]{1,10} (segm|kill|abort|bus ))",
    safety="Only the shell's own forms: 'script: line N: PID Death command', a job line, or the word alone on its "
    "line. Prose with the word does not count.",
    matches=(
        "/spool/job00006/slurm_script: line 3: 23310 Segmentation fault      (core dumped) python train.py",
        "run.sh: line 12:  4321 Killed                  python3 -u train.py --lr 1e-4",
        "Killed",
        "Segmentation fault (core dumped)",
        "Bus error (core dumped)",
        "Abort trap: 6",
        "train.sh: line 3:  1234 Killed: 9               python train.py",
        "Aborted (core dumped)",
        "zsh: killed     python train.py",
        "zsh: segmentation fault  python train.py --device mps",
        "[1]    1234 segmentation fault (core dumped)  python train.py",
        "[1]+  Killed                  python train.py",
        " 45%|####5     | 45/100 [00:12<00:15,  3.6it/s]Killed",
        "step 45 loss 0.5Killed",
        "step 45 took 812.4 msKilled",
        "[Training] 45/100 [====>.....] - ETA: 8:54  [ loss=1.4463 ]Segmentation fault (core dumped)",
        "line 22: 2612342 Bus error (core dumped) python3 train.py",
        "Terminated",
        "Hangup",
    ),
    avoids=(
        "Killed 12 background processes from last run",
        "Killed process cleanup finished",
        "The run was Aborted by the early stopper",
        "Terminated: early stopping at step 10",
        "killed",
        "loss is fine, nobody Killed",
        "Fatal Python error: Segmentation fault",
        "Aborted 3 of 10 uploads",
        "trial 7Killed by the scheduler of trials",
        "see line 22: 2612342 Bus error",
    ),
)
def _death(line: Line) -> Event | None:
    text = line.text
    match = _SCRIPT.search(text) or _JOB.match(text) or _ZSH.match(text)
    if match is None:
        match = _match_alone(text)
    if match is None:
        return None
    number = signal_number(match["death"])
    group = match.groupdict()
    pid = int(group["pid"]) if group.get("pid") else None
    return exits.process_exit(line, Exit(signal=number), "bash", pid, core=bool(match["core"]) or None)


def _match_alone(text: str) -> re.Match[str] | None:
    """A shell's message that is alone on the line, or right after a progress bar that was cut off."""
    message = _BAR.sub("", text.strip())
    match = _BARE.fullmatch(message.strip())
    if match is None or not match["death"][:1].isupper():
        return None
    return match if signal_number(match["death"]) in _SIGNALS_ALONE else None


@PARSER.pattern(
    b"|".join(spelling for word in TRANSLATED_DESCRIPTIONS for spelling in byte_regexes(word)),
    safety="A shell in another locale: after a process id, or alone on the line with at most the note about the core "
    "dump.",
    matches=(
        "run.sh: 行 22: 40312 已杀死               python train.py",
        "double free or corruption (!prev)\n已放弃 (核心已转储)",
        "Speicherzugriffsfehler (Speicherabzug geschrieben)",
        "run.sh: Zeile 4: 40312 Getötet                 python train.py",
        "run.sh: строка 4: 40312 Убито                   python train.py",
        "Tué",
    ),
    avoids=("进程已杀死 3 个", "l'erreur de segmentation du corpus"),
    caseless=True,
)
def _localized_death(line: Line) -> Event | None:
    text = _BAR.sub("", line.text).rstrip()
    match = _LOCALIZED.match(text)
    if match is None or (match["pid"] is None and match.end() != len(text)):
        return None
    pid = int(match["pid"]) if match["pid"] else None
    return exits.process_exit(
        line, Exit(signal=signal_number(match["death"])), "bash", pid, core=bool(match["core"]) or None
    )


@PARSER.pattern(
    rb"timeout: sending signal ",
    r"timeout: sending signal (\w{2,12}) to command",
    safety="timeout(1) with -v: the job's own script ended it.",
    matches=("timeout: sending signal TERM to command 'python'",),
    avoids=("timeout: sending signal flow to command",),
)
def _timeout_signal(line: Line, match: re.Match[str]) -> Event | None:
    number = signal_number(match[1])
    if number is None:
        return None
    exits.note_ending(line, "timeout")
    end = Exit(signal=number)
    return line.event("signal_received", EventRole.ROOT, signal=number, signal_name=end.signal_name, by="timeout")


@PARSER.pattern(
    rb"(Command terminated by signal [0-9]|Command exited with non-zero status [0-9]|command "
    rb"terminated with exit code [0-9]|Process finished with exit code -?[0-9]| exited with code [0-9]|"
    rb"(?i:exit(?:ed)? ?(?:code|status)|return ?code)[ :=]{1,3}[0-9]|\[[0-9]{1,3}\][-+]? {1,12}Exit [0-9])",
    r"^(?:Command (?:terminated by signal (?P<signal>\d{1,2})|exited with non-zero status (?P<status>\d{1,3}))"
    r"|command terminated with exit code (?P<code>\d{1,3})|Process finished with exit code (?P<ide>-?\d{1,4})\b"
    r"|[\w.-]{1,80} exited with code (?P<compose>\d{1,3})$|\[\d{1,3}\][-+]? {1,12}Exit (?P<control>\d{1,3})\b"
    r"|[\[(=*# ]{0,12}(?!(?i:exited))(?:(?i:\w{2,12} ){0,2}(?i:exit(?:ed)? ?(?:code|status)|return ?code))[ :=]{1,3}(?P<script>\d{1,3})[\])=*# .]{0,12}$)",
    safety="time(1), kubectl exec, IDEs, Docker Compose, a shell's job control and a script's own report; must start the line.",
    matches=(
        "Command terminated by signal 9",
        "Command exited with non-zero status 1",
        "command terminated with exit code 137",
        "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
        "trainer-1 exited with code 137",
        "[1]-  Exit 1                  python train.py",
        "Training exit code: 137",
        "=== exit status 1 ===",
    ),
    avoids=(
        "exit code 3 means that the data is missing",
        "The command terminated with exit code 1 in the docs",
    ),
)
def _exit_status(line: Line, match: re.Match[str]) -> Event:
    source = next(name for name in ("signal", "status", "code", "ide", "compose", "control", "script") if match[name])
    number = int(match[source])
    end = Exit(signal=number) if source == "signal" else read_code(number)
    return exits.process_exit(line, end, {"code": "kubectl", "ide": "ide", "compose": "compose"}.get(source, "time"))
