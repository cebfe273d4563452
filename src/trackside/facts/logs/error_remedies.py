"""What to change, if the message of an error shows it: a module, an argument, a command, a path, a variable."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Frame, Value, derived
from trackside.facts.logs.exceptions import announced_error, unopened_script
from trackside.facts.logs.fault_rules.rule import FaultClass
from trackside.finding import Action, Sentence, ShellCommand, action
from trackside.model import Event
from trackside.remedies import CHECK_PATH, CHECK_RELATIVE_PATH

CHECK_PATH_ON_NODES = Sentence("check that {path} exists on every node of the job")
CREATE_FOLDER = Sentence("create the folder of {path}, writable for the job, and resubmit")
WRITES = re.compile(r"\b\w*(?:save|write|dump|mkdir)\w*\b|\.to_csv\b|, ?(?:mode=)?['\"][wax]b?\+?['\"]")
"""Code that writes the file, whose folder is then missing."""
TEMPORARY = re.compile(r"/tmp/tmp\w")
_PATH = r"((?:\.{0,2}/|[\w.-]+/)[\w./-]{1,150})"
LOCAL_PATH = re.compile(rf"No such file or directory: '{_PATH}'|(?:^|\s){_PATH}; No such file or directory")
"""A path in a message of Python or of TensorFlow."""

CHECK_SCRIPT = Sentence("check the command line and the script's path, and resubmit")
CHECK_DASH = Sentence("correct the command line: {word} begins with {dash}, and options need two hyphens (--)")
DASHES = {"\N{EN DASH}": "an en dash", "\N{EM DASH}": "an em dash", "\N{MINUS SIGN}": "a minus sign"}
"""What editors write in place of two hyphens."""

REINSTALL = Sentence("reinstall the package of {library}, built for the installed {other}, and resubmit")
REINSTALL_PACKAGE_OF = Sentence(
    "reinstall {module}, which {library} belongs to, built for the installed {other}; then check it, and resubmit"
)
REINSTALL_PYTORCH = Sentence("reinstall PyTorch, in a new environment if in doubt; then check it, and resubmit")
BROKEN_LIBRARY = re.compile(r"([^\s/'\"]{1,150}\.so[.\d]{0,20}): undefined symbol(?:: (\S{1,300}))?")
PYTORCH_SYMBOL = re.compile(r"3c10|2at\d|5torch|\bTHP")
"""A namespace of PyTorch in the mangled name of a symbol."""
PACKAGE_FILE = re.compile(r"/(?:site|dist)-packages/([A-Za-z_]\w*)/")
PROVIDE_LIBRARY = Sentence(
    "install {library} on the nodes, or add its folder to LD_LIBRARY_PATH; then check it, and resubmit"
)
PROVIDE_DRIVER = Sentence(
    "{library} is part of the NVIDIA driver: run on a node that has the driver, or pass it to the container (--nv, "
    "--gpus all); then check it, and resubmit"
)
DRIVER_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so")
REINSTALL_NEEDING = Sentence(
    "{library} is part of other builds of PyTorch than the installed one: reinstall the package that loads it, built "
    "for the installed PyTorch, and resubmit"
)
PYTORCH_LIBRARY = re.compile(r"lib(?:c10|torch)[\w.]*\.so")
ABSENT_LIBRARY = re.compile(
    r"\b(lib[\w.+-]{1,80}\.so[.\d]{0,20})(?:: cannot open shared object|\)?.{0,60} is not configured correctly)"
)
_LOAD = """{python} -c 'import ctypes; ctypes.CDLL("{library}")'"""
LOAD_LIBRARY = (
    ShellCommand(f"srun --nodelist={{slurm_nodes}} --ntasks-per-node=1 {_LOAD}"),
    ShellCommand(_LOAD),
)
"""Fails until the loader finds the library, as the job does: by LD_LIBRARY_PATH, too."""

START_WITH_LAUNCHER = Sentence("{variable} is not set: start the script with torchrun or another launcher that sets it")
UNSET_VARIABLE = re.compile(
    r"(?:^['\"]?|environment variable )((?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))\b"
)
"""A variable that launchers set, as a message names it."""

INSTALL_MODULE = Sentence("install {module} in the job's environment; then check it, and resubmit")
INSTALL_VERSION = Sentence(
    "install a version of {package} that has {module} in the job's environment; then check it, and resubmit"
)
INSTALL_ON_NODE = Sentence(
    "install {module} on {node}, in the job's environment, as on the other nodes; then check it, and resubmit"
)
MISSING_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*(?:\.\w+)*)")
CHECK_IMPORT = (
    ShellCommand("srun --nodelist={slurm_node} --ntasks=1 {python} -c 'import {module}'"),
    ShellCommand("{python} -c 'import {module}'"),
)
"""Fails until the module can be imported, on a node that lacks it if Slurm has it."""
ENVIRONMENT = re.compile(r"(/[\w./+-]{1,120}?)/lib(?:64)?/python(\d(?:\.\d{1,2})?)/(?:(site|dist)-packages)?")
"""The folder and version of a Python, in the path of a library's file, and whether the file is of an added package."""
INSTALL_REQUIREMENT = Sentence("install {requirement} in the job's environment, and resubmit")
REQUIREMENT = re.compile(
    r"\brequires? [`'\"]?([A-Za-z][\w.\[\]-]{1,60}[<>=~!]=[\w.,<>=!]{1,30}?)[`'\"]?(?=[\s:,;)]|\.?$|\.\s)"
    r"|\bpip3? install (?:-U |--upgrade )?[`'\"]?([A-Za-z][\w.\[\],<>=~!-]{1,60}\w\]?)[`'\"]?(?=[\s:,;)]|\.?$|\.\s)"
)
"""The package that a message asks for, as pip names it."""
PIP_INSTALL = ShellCommand("{python} -m pip install '{requirement}'")

NEWER_THAN_DRIVER = Sentence(
    "the node's NVIDIA driver is older than the CUDA version that PyTorch or an extension was built with: compare the "
    "two, then use a build for an older CUDA version, or a node with a newer driver"
)
COMPARE_CUDA = ShellCommand("nvidia-smi; python -c 'import torch; print(torch.version.cuda)'")
NO_SUCH_GPU = Sentence(
    "the script asks for a GPU number that it cannot see: compare the number (cuda:N) with the GPUs of the job"
)
LIST_GPUS = ShellCommand("nvidia-smi -L; env | grep CUDA_VISIBLE_DEVICES")
USE_UTF8 = Sentence("have Python read and write text as Unicode: set this in the job script, and resubmit")
SET_UTF8 = ShellCommand("export PYTHONUTF8=1")
MATCH_VERSIONS = Sentence(
    "the installed package was found, but lacks that name: install versions that fit each other, if in doubt in a new "
    "environment, and resubmit"
)
INSTALL_TRITON = Sentence("install Triton in the job's environment, or turn torch.compile off with this, and resubmit")
DISABLE_COMPILE = ShellCommand("export TORCHDYNAMO_DISABLE=1")
DRAW_WITHOUT_DISPLAY = Sentence(
    "the connection to the display was lost, and a program that draws on it ends then: have plots drawn to files, with "
    "this in the job script, and resubmit"
)
UNSET_DISPLAY = ShellCommand("unset DISPLAY; export MPLBACKEND=Agg")
MESSAGE_REMEDIES: tuple[tuple[re.Pattern[str], Sentence, tuple[ShellCommand, ...]], ...] = (
    (re.compile(r"\bon X server\b|cannot connect to X server"), DRAW_WITHOUT_DISPLAY, (UNSET_DISPLAY,)),
    (
        re.compile(r"PTX was compiled with an unsupported toolchain|driver version is insufficient for CUDA runtime"),
        NEWER_THAN_DRIVER,
        (COMPARE_CUDA,),
    ),
    (re.compile(r"invalid device ordinal"), NO_SUCH_GPU, (LIST_GPUS,)),
    (re.compile(r"codec can't encode"), USE_UTF8, (SET_UTF8,)),
    (re.compile(r"cannot import name(?!.*circular import)", re.DOTALL), MATCH_VERSIONS, ()),
    (re.compile(r"TritonMissing|Cannot find a working t\s?riton"), INSTALL_TRITON, (DISABLE_COMPILE,)),
)
"""Type and message of an error of the environment or of a setting -> what to do about it."""

_OPTION = r"((?:-{1,2}\w[\w-]{0,60})(?:/-{1,2}\w[\w-]{0,60})?|\w[\w-]{0,60})"
ARGUMENT_REMEDIES: tuple[tuple[re.Pattern[str], Sentence], ...] = (
    (
        re.compile(rf"argument {_OPTION}: ignored explicit argument '([^']{{0,80}})'"),
        Sentence("{one} is a switch: write {one}, not {one}={two}, and resubmit"),
    ),
    (
        re.compile(rf"argument {_OPTION}: not allowed with argument {_OPTION}"),
        Sentence("give {one} or {two} on the command line, not both, and resubmit"),
    ),
    (
        re.compile(rf"argument {_OPTION}: invalid choice: '?([^'\s]{{1,80}})"),
        Sentence("set {one} to one of the values that the message lists, not to {two}, and resubmit"),
    ),
    (
        re.compile(rf"argument {_OPTION}: invalid \w{{1,60}} value: '([^']{{0,80}})'"),
        Sentence("correct {one} on the command line, which does not accept {two}, and resubmit"),
    ),
    (
        re.compile(rf"argument {_OPTION}: expected (?:one|\d|at least)"),
        Sentence("give {one} its value on the command line, and resubmit"),
    ),
    (re.compile(rf"argument {_OPTION}:"), Sentence("correct {one} on the command line, and resubmit")),
    (
        re.compile(r"arguments are required: ([^\n]{1,200})"),
        Sentence("add {one} to the command line, and resubmit"),
    ),
    (
        re.compile(
            r"(?:unrecognized arguments|[Uu]nknown command line flag|No such option|Could not consume arg):? "
            r"(\S[^\n]{0,200})"
        ),
        Sentence("remove {one} from the command line, or correct it: the program does not know it; then resubmit"),
    ),
    (
        re.compile(r"(?:Invalid value for|Missing (?:option|argument)) '([^'\n]{1,80})'"),
        Sentence("correct {one} on the command line, and resubmit"),
    ),
)  # fmt: skip
"""What argparse, click, absl and fire print about an argument -> what to do about it."""

SHELL_LINE = re.compile(
    r"(?:(?P<script>[^\s:]{1,200}): )?(?:line )?(?:(?P<line>\d{1,6}): )?(?P<command>[^\s:]{1,300}): "
    r"(?P<what>command not found|not found|No such file or directory|Permission denied|cannot execute.{0,40})$"
)
"""A shell's report on a command that it could not run."""
SHELL_REMEDIES = {
    ("script not found", True): Sentence(
        "correct the path of {command} in line {line} of {script} (./{command} in the folder of the job), and resubmit"
    ),
    ("script not found", False): Sentence(
        "correct the path of {command} (./{command} in the folder of the job), and resubmit"
    ),
    ("not found", True): Sentence(
        "install {command} in the job's environment, or correct its name or path in line {line} of {script}; then "
        "resubmit"
    ),
    ("not found", False): Sentence(
        "install {command} in the job's environment, or correct its name or path; then resubmit"
    ),
    ("No such file", True): Sentence(
        "create {command}, or correct its path in line {line} of {script}, and resubmit"
    ),
    ("No such file", False): Sentence("create {command}, or correct its path, and resubmit"),
    ("", True): Sentence(
        "make {command}, in line {line} of {script}, a file that this machine and user can execute, and resubmit"
    ),
    ("", False): Sentence("make {command} a file that this machine and user can execute, and resubmit"),
}  # fmt: skip
"""(What the shell cannot find or do, whether it names the script's line) -> what to do about it."""


@dataclass(frozen=True, slots=True)
class ErrorPlace:
    """Where an error occurred, as far as a remedy depends on it."""

    nodes: int = 1
    """Number of nodes of the job."""
    node: Value | None = None
    """The only node that raised it; None if others did, too."""


def error_remedy(frame: Frame, row: Event, kind: FaultClass, where: ErrorPlace) -> Action | None:
    """What to change, if the message of an error shows it; None if it does not. ``frame``: all exceptions."""
    row = announced_error(frame, row) or row
    text, message = str(row.get("message") or ""), frame.value(row, "message")
    if (script := unopened_script(frame, row)) is not None:
        dash = DASHES.get(str(script.value)[:1])
        return action(CHECK_SCRIPT) if dash is None else action(CHECK_DASH, word=script, dash=derived(dash, script))
    causes = f"{row.get('type')}: {text}\n{row.get('root_message') or ''}"
    if (library := BROKEN_LIBRARY.search(causes)) is not None:
        return _broken_library_remedy(frame, row, library, message)
    if (library := ABSENT_LIBRARY.search(causes)) is not None:
        return _absent_library_remedy(frame, row, derived(library[1], message))
    if (variable := UNSET_VARIABLE.search(text)) is not None:
        return action(START_WITH_LAUNCHER, variable=derived(variable[1], message))
    if kind == "config" and (argument := _argument_remedy(text, message)) is not None:
        return argument
    if row.get("type") == "ShellError" and (match := SHELL_LINE.search(text.strip())) is not None:
        return _shell_remedy(match, message)
    if kind in ("asset", "config", "data") and (path := LOCAL_PATH.search(text)) is not None:
        name = path[1] or path[2]
        if TEMPORARY.match(name):
            return None
        if WRITES.search(f"{row.get('user_code')} {row.get('frame')}"):
            return action(CREATE_FOLDER, path=derived(name, message))
        on_nodes = CHECK_PATH_ON_NODES if where.nodes > 1 else CHECK_PATH
        return action(on_nodes if name.startswith("/") else CHECK_RELATIVE_PATH, path=derived(name, message))
    if kind in ("env", "config"):
        for pattern, remedy, commands in MESSAGE_REMEDIES:
            if pattern.search(causes):
                return action(remedy, *commands)
    return _package_remedy(frame, row, text, message, where) if kind == "env" else None


def _broken_library_remedy(frame: Frame, row: Event, match: re.Match[str], message: Value) -> Action:
    """What to reinstall: the package of the library, by its path or by the traceback of the package that loads it."""
    library, symbol = match.groups(default="")
    frames = PACKAGE_FILE.findall(str(row.get("frames") or ""))
    of_path = PACKAGE_FILE.search(match.string[: match.start()].rpartition(" ")[2])
    package = of_path[1] if of_path else next((name for name in frames[::-1] if library.startswith(name)), None)
    other = derived("PyTorch" if PYTORCH_SYMBOL.search(symbol) else "packages", message)
    values = {"library": derived(library, message), "other": other}
    if package is None:
        return action(REINSTALL, **values)
    values |= {"module": derived(package, message), "python": _python(frame, row, message)}
    return action(REINSTALL_PYTORCH if package == "torch" else REINSTALL_PACKAGE_OF, *CHECK_IMPORT, **values)


def _absent_library_remedy(frame: Frame, row: Event, library: Value) -> Action:
    """How to provide a library that the loader does not find."""
    if PYTORCH_LIBRARY.match(str(library.value)):
        return action(REINSTALL_NEEDING, library=library)
    sentence = PROVIDE_DRIVER if DRIVER_LIBRARY.match(str(library.value)) else PROVIDE_LIBRARY
    return action(sentence, *LOAD_LIBRARY, library=library, python=_python(frame, row, library))


def _argument_remedy(text: str, message: Value) -> Action | None:
    for pattern, sentence in ARGUMENT_REMEDIES:
        if (match := pattern.search(text)) is not None:
            names = ("one", "two")
            groups = (derived(group.strip(), message) for group in match.groups())
            return action(sentence, **dict(zip(names, groups, strict=False)))
    return None


def _shell_remedy(match: re.Match[str], message: Value) -> Action:
    what = next(key for key in ("not found", "No such file", "") if key in match["what"])
    if what == "not found" and re.search(r"\.(?:sh|py|bash)$", match["command"]):
        what = "script not found"
    names = [name for name in ("command", "script", "line") if match[name] is not None]
    has_line = len(names) == len(match.groupdict()) - 1
    values = {name: derived(match[name].strip("'"), message) for name in (names if has_line else names[:1])}
    return action(SHELL_REMEDIES[what, has_line], **values)


def _package_remedy(frame: Frame, row: Event, text: str, message: Value, where: ErrorPlace) -> Action | None:
    """How to get a package that is missing, or too old."""
    python = _python(frame, row, message)
    if (match := REQUIREMENT.search(text)) is not None:
        requirement = derived(match[1] or match[2], message)
        return action(INSTALL_REQUIREMENT, PIP_INSTALL, requirement=requirement, python=python)
    if (match := MISSING_MODULE.search(text)) is None:
        return None
    module, package = derived(match[1], message), derived(match[1].partition(".")[0], message)
    if where.node is not None:
        return action(INSTALL_ON_NODE, *CHECK_IMPORT, module=module, python=python, node=where.node)
    if package.value != module.value:  # the package is there, without this part of it
        return action(INSTALL_VERSION, *CHECK_IMPORT, module=module, python=python, package=package)
    return action(INSTALL_MODULE, *CHECK_IMPORT, module=module, python=python)


def _python(frame: Frame, row: Event, message: Value) -> Value:
    """The job's Python, by the paths of the libraries in the tracebacks of the error's log; else ``python``."""
    places = [
        (frame.value(event, "frames"), match)
        for event in frame.events
        if event.at.path == row.at.path
        for match in ENVIRONMENT.finditer(str(event.get("frames") or ""))
    ]
    place = min(places, key=lambda place: not _is_environment(place[1]), default=None)
    return derived("python", message) if place is None else derived(_interpreter(place[1]), place[0])


def _is_environment(match: re.Match[str]) -> bool:
    """Whether added packages lie there: a virtual environment uses the standard library of another Python."""
    return match[3] is not None and not match[1].endswith("/.local")


def _interpreter(match: re.Match[str]) -> str:
    """The interpreter that has its libraries there."""
    folder, version, packages = match.groups()
    if folder.endswith("/.local") or (packages is None and folder in ("/usr", "/usr/local")):
        return f"python{version}"  # whose packages may lie elsewhere, too
    if packages == "dist":  # only the Pythons of Debian and Ubuntu have such a folder, in /usr/local for pip
        return f"/usr/bin/python{version}"
    return f"{folder}/bin/python{version if folder in ('/usr', '/usr/local') else version[0]}"
