"""Failures before Python could raise: wrong options, missing commands and scripts, containers that do not start.

They become ``exception`` events too, with the type that the tool would have raised, or a plain name for it.
"""

from __future__ import annotations

import re

from trackside.catalog.events import MAX_MESSAGE_CHARS
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_JOB_COMMANDS = re.compile(
    r"(?:^|/)(?:python[\d.]*|torchrun|accelerate|deepspeed|llamafactory-cli|axolotl|colossalai|composer|lightning"
    r"|nemo_launcher|tune|trl|swift|xtuner"
    r"|srun|mpirun|mpiexec|singularity|apptainer|enroot|docker|podman|uv|poetry|bash|[\w.-]+\.(?:sh|py|bash))$"
)


def _exception(line: Line, name: str, message: str, role: EventRole = EventRole.ROOT) -> Event:
    """The event of a failure that Python would have raised as this type."""
    message = message.strip()[:MAX_MESSAGE_CHARS]
    return line.event(
        "exception", role, type=name, message=message, root_type=name, root_message=message, about="application"
    )


_USAGE = re.compile(r"(?P<program>[^\s:][^:]{0,120}): error: (?P<message>.{1,1000})")
_LAUNCHERS = re.compile(r"^(?:srun|sbatch|salloc|slurmstepd|scancel|slurmd|bash|sh)$")


_ARGPARSE = re.compile(
    r"unrecogni[sz]ed arg|Unrecognized arg|argument |the following arguments|ambiguous option|too few arguments"
    r"|one of the arguments|Parser key |Configuration check|Problem with given|invalid choice|expected "
)

PARSER = Parser("command-line", "command lines and containers", "system")


@PARSER.pattern(
    rb": error: ",
    safety="Only '<program>: error: ' followed by argparse's own words; Slurm's commands also write 'error:'.",
    matches=(
        "train.py: error: unrecognized arguments: --lrate 0.1",
        "pretrain.py: error: argument --fp16: not allowed with argument --bf16",
        "train.py: error: the following arguments are required: --model",
    ),
    avoids=("srun: error: argument too long", "slurmstepd: error: expected state"),
)
def _parse_usage(line: Line) -> Event | None:
    match = _USAGE.match(line.text)
    if match is None or _LAUNCHERS.match(match["program"].strip()) or _ARGPARSE.match(match["message"]) is None:
        return None
    return _exception(line, "argparse.ArgumentError", f"{match['program']}: error: {match['message']}")


def _message_event(line: Line, match: re.Match[str], name: str, following: int = 0) -> Event:
    """An exception event whose message is the line from group ``message`` on, plus up to ``following`` lines after it."""
    lines = [line.text[match.start("message") :]]
    for below in line.following(following) if following else ():
        if below.label != line.label or not below.text.strip():
            break
        lines.append(below.text)
    return _exception(line, name, "\n".join(lines))


@PARSER.pattern(
    rb"Error: (?:No such option|Got unexpected extra|Missing (?:option|argument|parameter)"
    rb"|Invalid value for)|No such command '",
    r"^(?:[│|]\s)?(?:Error: )?(?P<message>(?:No such|Got unexpected|Missing|Invalid value))",
    safety="click's and typer's own sentences at the start of the line.",
    matches=("Error: No such option: --lrate", "Error: Invalid value for '--lr': 'abc' is not a valid float."),
    avoids=("ValueError: Invalid value for x",),
)
def _click(line: Line, match: re.Match[str]) -> Event:
    return _message_event(line, match, "click.UsageError")


@PARSER.pattern(
    rb"FATAL Flags parsing error|Could not consume arg: ",
    r"^(?:FATAL |ERROR: )?(?P<message>Flags parsing error|Could not consume arg)",
    safety="absl's and fire's own sentences.",
    matches=(
        "FATAL Flags parsing error:\n  Unknown command line flag 'lrate'. Did you mean: lr ?",
        "ERROR: Could not consume arg: --lrate",
    ),
    avoids=("flags parsed",),
)
def _absl_flags(line: Line, match: re.Match[str]) -> Event:
    return _message_event(line, match, "absl.flags.Error", 3)


@PARSER.pattern(
    rb"Could not override '|Cannot find primary config |In '[^'\n]{1,100}': Could not (?:find|load) "
    rb"|Error merging override |Missing mandatory value: |LexerNoViableAlt|Error parsing override '"
    rb"|missing EQUAL at '|mismatched input '|no viable alternative at input '",
    r"^(?P<message>Could not override '|Cannot find primary|In '|Error merging|Missing mandatory"
    r"|LexerNoViableAlt|Error parsing|missing EQUAL|mismatched input|no viable)",
    safety="hydra's own sentences at the start of the line, printed instead of a traceback.",
    matches=(
        "Could not override 'trainer.foo'.\nTo append to your config use +trainer.foo=1",
        "Cannot find primary config 'train'. Check that it's in your config search path.",
    ),
    avoids=("we could not override the default",),
)
def _hydra(line: Line, match: re.Match[str]) -> Event:
    return _message_event(line, match, "hydra.errors.ConfigCompositionException", 5)


_REPR = re.compile(
    r"(?P<type>(?:\w{1,60}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception))\((?P<quote>['\"]?)(?P<message>.{0,400}?)(?P=quote),?\)$"
)


@PARSER.pattern(
    rb"Error (?:in call to target '|instantiating '|locating target '|creating '|loading '[\w.]+':)",
    r"^(?:hydra\.errors\.\w{1,40}: )?(?P<message>Error (?:in call to target|instantiating|locating target|creating|loading)"
    r" '.{1,300}'(?:,| ?:|\.).{0,400})$",
    safety="hydra's report about a target of the configuration that could not be built, instead of a traceback; the "
    "error itself is behind it or on the line below.",
    matches=(
        "Error in call to target 'app.nets.Encoder':\nTypeError(\"missing 1 required argument: 'width'\")\nfull_key: net",
        "Error instantiating 'app.data.Loader' : no such split",
        "Error locating target 'app.nets.Encodr', set env var HYDRA_FULL_ERROR=1 to see chained exception.",
    ),
    avoids=("we saw an Error in call to target 'x'", "Error loading 3 files"),
)
def _hydra_target(line: Line, match: re.Match[str]) -> Event | None:
    if "Traceback (most recent" in line.buffer[max(0, line.start - 400) : line.start].decode("utf-8", "replace"):
        return None
    below = next((near.text.strip() for near in line.following(1)), "")
    cause = _REPR.match(below)
    if cause is None:
        return _exception(line, "hydra.errors.InstantiationException", match["message"])
    return _exception(line, cause["type"], f"{cause['message']} ({match['message'].rstrip(':')})")


_SHELL = re.compile(
    r"(?:(?P<script>[\w./~-]{1,200}): )?(?:line \d{1,6}: "
    r"|\d{1,6}: )?(?P<what>[\w./~+-]{1,300}): (?P<message>command not found|not found|No such file or directory"
    r"|Permission denied|cannot execute[\w :]{0,40})$"
)


@PARSER.pattern(
    rb": (?:command not found|not found|No such file or directory|Permission denied|cannot execute)",
    safety="A shell's report on a command; a missing helper (module, nvidia-smi) only confirms. Programs' own 'No "
    "such file' lines do not count.",
    matches=(
        "bash: python: command not found",
        "/var/spool/slurmd/job00042/slurm_script: line 12: torchrun: command not found",
        "run.sh: line 5: ./train.sh: No such file or directory",
        "run.sh: line 3: nvidia-smi: command not found",
    ),
    avoids=(
        "cp: cannot stat 'a.txt': No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "libnccl-net.so: cannot open shared object file: No such file or directory",
    ),
)
def _parse_shell(line: Line) -> Event | None:
    match = _SHELL.fullmatch(line.text.strip())
    if match is None or match["script"] is None:
        return None
    from_shell = re.search(r"(?:^|/)(?:ba|z|da|k)?sh$|slurm_script$|\.(?:sh|sbatch|slurm|bash)$", match["script"])
    if from_shell is None and ": line " not in line.text:
        return None
    role = EventRole.ROOT if _JOB_COMMANDS.search(match["what"]) else EventRole.CONFIRMATION
    return _exception(line, "ShellError", line.text, role)


@PARSER.pattern(
    rb"execve\(\): [^\n]{1,300}: (?:No such file|Permission denied|Exec format)"
    rb"|executable file not found in \$PATH|env: [^\n]{1,100}: No such file",
    r"^(?P<message>.{0,200}(?:execve\(\): .{1,300}|executable file not found in .{1,20}"
    r"|env: .{1,100}: No such file.{0,40}))",
    safety="The step's own program could not be started.",
    matches=(
        "slurmstepd: error: execve(): train.py: No such file or directory",
        "/usr/bin/env: 'python': No such file or directory",
    ),
    avoids=("execve traced",),
)
def _slurm_exec(line: Line, match: re.Match[str]) -> Event:
    return _message_event(line, match, "ShellError")


_CONTAINER = re.compile(
    r".{0,80}?error: pyxis: (?P<pyxis>.{1,500})"
    r"|(?:docker: )?(?P<docker>Error response from daemon: .{1,500})|FATAL: {1,3}(?P<sif>.{1,500})"
    r"|(?P<nvidia>(?:.{0,200})nvidia-container-cli: .{1,300})|\[ERROR\] (?P<enroot>.{1,300})"
)
_PYXIS_PROGRESS = re.compile(
    r"import(?:ing|ed) docker image|creating container|starting container|container (?:start|stop)ed|completed"
    r"|reusing existing"
)


@PARSER.pattern(
    rb"pyxis: |Error response from daemon: |FATAL:   |nvidia-container-cli: ",
    safety="pyxis' progress notes (importing, starting) do not count; of several error lines in a row, the first "
    "becomes the event.",
    matches=(
        "srun: error: pyxis: could not add mount entry: data/x:/workspace/x",
        "slurmstepd: error: pyxis: container start failed with error code: 1",
        "FATAL:   could not open image /images/train.sif: failed to retrieve path for /images/train.sif",
        "docker: Error response from daemon: could not select device driver",
    ),
    avoids=(
        "pyxis: importing docker image: nvcr.io/nvidia/pytorch:24.05-py3",
        "slurmstepd: pyxis: imported docker image: x",
    ),
)
def _parse_container(line: Line) -> Event | None:
    match = _CONTAINER.match(line.text)
    if match is None:
        return None
    message = next(filter(None, match.groups()))
    if match["pyxis"] and _PYXIS_PROGRESS.match(message):
        return None
    if (
        match["sif"]
        and re.match(
            r"(?:could not open image|container creation failed|[Uu]nable to|.*(?:image|container|mount|squashfs"
            r"|overlay))",
            message,
        )
        is None
    ):
        return None
    above = next(iter(line.preceding(1)), None)
    if above is not None and match["pyxis"] and "error: pyxis: " in above.full:
        return None  # already part of the event of the line above
    lines = [message]
    for below in line.following(12):
        if "pyxis: " not in below.text and "Invalid --container" not in below.text:
            break
        lines.append(below.text)
    return _exception(line, "ContainerError", "\n".join(lines))


@PARSER.pattern(
    rb"python[\d.]*: (?:can't |No module named|Error while finding)",
    r"^(?P<python>[^\s:]{0,200}python[\d.]*): (?P<message>(?:can't open file|No module named"
    r"|Error while finding module specification|can't find '__main__').{0,500})",
    safety="The interpreter's own one-line errors.",
    matches=(
        "python: can't open file '/home/user/train.py': [Errno 2] No such file or directory",
        "/usr/bin/python3: No module named torch.distributed.run",
    ),
    avoids=("python: 3.11", "using python3: can"),
)
def _parse_python(line: Line, match: re.Match[str]) -> Event:
    missing = match["message"].startswith(("No module", "Error while"))
    return _exception(line, "ModuleNotFoundError" if missing else "FileNotFoundError", match["message"])


_WINDOWS_PYTHON = re.compile(
    r"python[\d.]*\.exe: (?P<message>(?:can't open file|can't find '__main__'|No module named).{0,500}?)(?: At line:\d|$)",
    re.IGNORECASE,
)
_POWERSHELL_PLACE = re.compile(r"At (?:line:\d|\S{1,300}:\d{1,6} char:)")
MAX_WRAPPED_LINES = 5
"""Lines into which PowerShell wraps a program's error."""


@PARSER.pattern(
    rb"python[0-9.]{0,6}\.exe: (?:can't|No module named)",
    safety="The interpreter's own errors on Windows, which PowerShell wraps and follows with the place in its script.",
    matches=(
        "python : C:\\Python311\\python.exe: can't \nopen file 'C:\\work\\fit.py': [Errno \n2] No such file or directory\nAt line:1 char:1",
        "C:\\Python311\\python.exe: No module named trainer",
    ),
    avoids=("C:\\Python311\\python.exe: can'tada",),
    caseless=True,
)
def _parse_windows_python(line: Line) -> Event | None:
    texts = [line.text.strip()]
    for below in line.following(MAX_WRAPPED_LINES):
        if _POWERSHELL_PLACE.match(below.text):
            break
        texts.append(below.text.strip())
    match = _WINDOWS_PYTHON.search(" ".join(texts[: 1 + MAX_WRAPPED_LINES]))
    if match is None:
        return None
    missing = match["message"].lower().startswith("no module")
    return _exception(line, "ModuleNotFoundError" if missing else "FileNotFoundError", match["message"])


@PARSER.pattern(
    rb"is not recognized as (?:the name of a cmdlet|an internal or external command)",
    r"(?:\S{1,80} : )?(?P<message>(?:The term )?'(?P<command>[^']{1,200})' is not recognized as (?:the name of a cmdlet|an internal or external command))",
    safety="PowerShell's and cmd.exe's whole sentence.",
    matches=(
        "python : The term 'python' is not recognized as the name of a cmdlet, function, script file, or operable program.",
        "'torchrun' is not recognized as an internal or external command,",
    ),
    avoids=("the label is not recognized as an internal one",),
)
def _parse_windows_command(line: Line, match: re.Match[str]) -> Event:
    return _exception(line, "CommandNotFoundError", match["message"])


_LIBRARY = re.compile(
    r"(?P<message>.{0,300}(?:error while loading shared libraries: \S{1,200}|: symbol lookup error: \S{1,200}"
    r"|version `GLIBC\w{0,3}_[\d.]+' not found).{0,200})"
)


@PARSER.pattern(
    rb"error while loading shared libraries: |: symbol lookup error: |version `GLIBC\w{0,3}_[\d.]{1,10}' not found",
    safety="The dynamic loader's own sentence; inside an ImportError the traceback parser reads it.",
    matches=(
        (
            "./train: error while loading shared libraries: libcudart.so.11.0: cannot open shared object file: "
            "No such file or directory"
        ),
        "/opt/venv/bin/python: symbol lookup error: /opt/lib/libops.so: undefined symbol: _ZN2at4_ops3addE",
    ),
    avoids=("ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by a.so)",),
)
def _parse_library(line: Line) -> Event | None:
    if "Error: " in line.text.split("version `", 1)[0]:
        return None  # the traceback parser reads it
    match = _LIBRARY.match(line.text)
    return None if match is None else _exception(line, "SharedLibraryError", match["message"])
