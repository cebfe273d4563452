"""What to change, if the message of an error shows it: a module, an argument, a command, a path, a variable."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from trackside.evidence import Frame, Value, derived
from trackside.facts.logs import state_dict_errors
from trackside.facts.logs.exceptions import BAD_INTERPRETER, announced_error, source_line, unopened_script
from trackside.facts.logs.fault_rules.rule import FaultClass
from trackside.facts.logs.python_environment import PACKAGES, interpreter, package_of_library
from trackside.facts.logs.repository_remedies import check_path, repository_remedy
from trackside.finding import Action, Sentence, ShellCommand, action
from trackside.model import Event

CREATE_FOLDER = Sentence("create {folder}, writable for the job, and resubmit")
CREATE_RELATIVE_FOLDER = Sentence(
    "create {folder}, relative to the folder in which the job starts, writable for the job, and resubmit"
)
MAKE_FOLDER = ShellCommand("mkdir -p {quoted_folder}")
WRITES = re.compile(
    r"\b\w*(?:save|write|dump|mkdir)\w*\b|\bto_csv\b|, ?(?:mode=)?['\"][wax]b?\+?['\"]"
    r"|logging/__init__\.py:\d+ in _open$"
)
"""Code, functions or frames that write the file, whose folder is then missing."""
TEMPORARY = re.compile(r"/tmp/tmp\w")
_PATH = r"((?:\.{0,2}/|[\w.-]+/)[\w./-]{1,150})"
LOCAL_PATH = re.compile(
    rf"No such file or directory: '{_PATH}'|(?:^|\s){_PATH}; No such file or directory"
    rf"|Could not open file {_PATH}: No such|[Ff]ile not found: {_PATH}(?=\s|$)"
    r"|(?:Incorrect path_or_model_id: |'namespace/repo_name': )'(\.{0,2}/[\w./-]{1,150})'"
)
"""A path in a message of Python, TensorFlow, DALI or the Hugging Face libraries."""
ABSENT_FOLDER = re.compile(
    r"Parent directory (\S{1,200}) does not exist|into a non-existent directory: '([^'\n]{1,200})'"
)
UNCREATED_FILE = re.compile(
    r"Unable to (?:synchronously )?create file \(unable to open file: name = '([^'\n]{1,200})', errno = 2"
)
"""What PyTorch, pandas and HDF5 say if the folder of a file to write is missing."""

CHECK_SCRIPT = Sentence("check the command line and the script's path, and resubmit")
CHECK_DASH = Sentence("correct the command line: {word} begins with {dash}, and options need two hyphens (--)")
DASHES = {"\N{EN DASH}": "an en dash", "\N{EM DASH}": "an em dash", "\N{MINUS SIGN}": "a minus sign"}
"""What editors write in place of two hyphens."""

REINSTALL_LOADER = Sentence(
    "{package}, which loads {library}, does not fit the installed {other}: reinstall {package}, so that it is built "
    "for what is installed; then check that it loads, and resubmit"
)
_REBUILD = "{python} -m pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation {package}"
REBUILD_PACKAGE = (ShellCommand(f"{_REBUILD} && {{python}} -c 'import torch, {{extension}}'"), ShellCommand(_REBUILD))
"""Not from the cache, which has the build that does not fit, and against the PyTorch that is installed."""
EXTENSION_MODULE = re.compile(r"[\\/](?:site|dist)-packages[\\/]([A-Za-z]\w*)\.cpython-")
"""A library that Python imports by its own name."""
FIT_TORCH = Sentence(
    "{library} does not fit the other libraries that the job loads: unset LD_LIBRARY_PATH in the job, or reinstall "
    "torch with the NVIDIA packages that it requires; then check it, and resubmit"
)
CHECK_TORCH = ShellCommand("env -u LD_LIBRARY_PATH {python} -c 'import torch'")
REINSTALL = Sentence("reinstall the package of {library}, built for the installed {other}, and resubmit")
BROKEN_LIBRARY = re.compile(r"([^\s'\"]{1,400}\.so[.\d]{0,20}): undefined symbol(?:: (\S{1,300}))?")
PYTORCH_SYMBOL = re.compile(r"3c10|2at\d|5torch|\bTHP")
"""A namespace of PyTorch in the mangled name of a symbol."""
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
    ShellCommand("{python} -m pip install {known_package} && {python} -c 'import {module}'"),
    ShellCommand("{python} -c 'import {module}'"),
)
"""Fails until the module can be imported, on a node that lacks it if Slurm has it."""
INSTALL_REQUIREMENT = Sentence("install {requirement} in the job's environment, and resubmit")
REQUIREMENT = re.compile(
    r"\brequires? [`'\"]?([A-Za-z][\w.\[\]-]{1,60}[<>=~!]=[\w.,<>=!]{1,30}?)[`'\"]?(?=[\s:,;)]|\.?$|\.\s)"
    r"|\bpip3? install (?:-U |--upgrade )?[`'\"]?([A-Za-z][\w.\[\],<>=~!-]{1,60}\w\]?)[`'\"]?(?=[\s:,;)]|\.?$|\.\s)"
)
"""The package that a message asks for, as pip names it."""
NAMED_PACKAGE = re.compile(r"[Pp]lease install ['\"`]([A-Za-z]\w{1,60})['\"`]")
"""A package that a message asks for without a command; its module has the same name."""
PIP_INSTALL = ShellCommand("{python} -m pip install '{requirement}'")
PIP_UPGRADE = ShellCommand("{python} -m pip install --upgrade {package}")

NEWER_THAN_DRIVER = Sentence(
    "the node's NVIDIA driver is older than the CUDA version that PyTorch or an extension was built with: compare the "
    "two, then use a build for an older CUDA version, or a node with a newer driver"
)
COMPARE_CUDA = ShellCommand("nvidia-smi; python -c 'import torch; print(torch.version.cuda)'")
RAISE_HOST_MEMORY = Sentence(
    "request more host memory for the job, or hold less of the data in memory at once (read it in parts, fewer "
    "DataLoader workers); then resubmit"
)
NO_SUCH_GPU = Sentence(
    "the script asks for a GPU number that it cannot see: compare the number (cuda:N) with the GPUs of the job"
)
LIST_GPUS = ShellCommand("nvidia-smi -L; env | grep CUDA_VISIBLE_DEVICES")
USE_UTF8 = Sentence("have Python read and write text as Unicode: set this in the job script, and resubmit")
SET_UTF8 = ShellCommand("export PYTHONUTF8=1")
NAME_MISSING = re.compile(
    r"cannot import name '?([\w.]{1,80})'? from '?([\w.]{1,120})'?(?!.*circular import)", re.DOTALL
)
PACKAGE_FOLDER = re.compile(r"/(?:site|dist)-packages/(\w+)")
_LACKS = "the installed {package} has no {name} in {module}"
MATCH_VERSIONS = Sentence(f"{_LACKS}: install a version of {{package}} that has it, and resubmit")
MATCH_IMPORTER = Sentence(
    f"{_LACKS}, which {{importer}} imports: install versions of {{importer}} and {{package}} that fit each other, if "
    "in doubt in a new environment, and resubmit"
)
REINSTALL_PACKAGE = Sentence(
    f"{_LACKS}, which it imports itself: reinstall {{package}}, if in doubt in a new environment, and resubmit"
)
REINSTALL_TORCH = Sentence(
    f"{_LACKS}: reinstall torch and triton in matching versions, if in doubt in a new environment, and resubmit"
)
INSTALL_CUDA_BUILD = Sentence(
    "the installed PyTorch is built without CUDA: install a CUDA build in the job's environment; then check it (the "
    "command prints its CUDA version, or None), and resubmit"
)
SHOW_CUDA_BUILD = ShellCommand("python -c 'import torch; print(torch.version.cuda)'")
NO_GPU_VISIBLE = Sentence(
    "the program sees no GPU: check that the job requests one and that PyTorch is a CUDA build, with this in the job "
    "script; then resubmit"
)
SHOW_GPUS = ShellCommand(
    "nvidia-smi -L; python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'"
)
BUILD_FOR_GPU = Sentence(
    "PyTorch, or an extension, is not built for this type of GPU: compare the GPU with the architectures of the build, "
    "on a node of the job, then install a build that has it, and resubmit"
)
SHOW_ARCHITECTURES = ShellCommand(
    "python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())'"
)
DOWNLOAD_FIRST = Sentence(
    "the node cannot reach huggingface.co: download the files on a machine that can, to a HF_HOME that the nodes "
    "share, set this in the job script, and resubmit"
)
WORK_OFFLINE = ShellCommand("export HF_HUB_OFFLINE=1")
NO_PROCESS_GROUP = re.compile(r"[Dd]efault process group has not been initialized")
SYNCHRONIZED_NORM = Sentence(
    "SyncBatchNorm needs a process group: start the script with torchrun and initialize the group before the model "
    "runs, or use BatchNorm on one GPU; then resubmit"
)
INITIALIZE_GROUP = Sentence(
    "start the script with torchrun or another launcher, and call torch.distributed.init_process_group before this "
    "code; on one GPU, leave the call that needs a process group out; then resubmit"
)
LOAD_ENTRY = Sentence("the checkpoint holds more than the weights: load its entry '{entry}', and resubmit")
LOAD_ENTRY_AT = Sentence(
    "the checkpoint holds more than the weights: load its entry '{entry}' at {place}, and resubmit"
)
REMOVE_PREFIX = Sentence(
    "names in the checkpoint begin with '{prefix}', which a wrapper of the model added: remove it from them before "
    "loading, and resubmit"
)
WRAP_LATER = Sentence(
    "names in the model begin with '{prefix}', which a wrapper adds: load the checkpoint before the model is wrapped, "
    "and resubmit"
)
PICKLED_BY_OTHER = re.compile(
    r"Can't get attribute '[^']{1,80}' on <module '([A-Za-z]\w*)[\w.]*' from '[^']*site-packages"
)
LOAD_WITH_WRITER = Sentence(
    "the file that is loaded was pickled with another version of {package}: install the version that wrote it in the "
    "job's environment, or write the file again with the installed one, and resubmit"
)
PICKLED_BY_NUMPY_2 = re.compile(r"No module named 'numpy\._core")
INSTALL_NUMPY_2 = Sentence(
    "the data were pickled with NumPy {version} or later: install it in the job's environment, or write the data again "
    "with the installed NumPy, and resubmit"
)
OLD_TRANSFORMERS = re.compile(
    r"your version of Transformers is out of date|Tokenizer class \w{1,80} does not exist or is not currently imported"
)
UPGRADE_TRANSFORMERS = Sentence(
    "upgrade transformers in the job's environment; if the newest version does not know the model either, load the "
    "model with its own code (trust_remote_code=True, or the package that defines it); then resubmit"
)
UNEQUAL_COLUMNS = re.compile(
    r"there are \d{1,4} new columns \(\{([^})]{1,300})\}\)(?: and \d{1,4} missing columns \(\{([^})]{1,300})\}\))?"
)
BUILT_FROM = re.compile(r"was generating data using\s{1,8}(\S{1,300})")
GIVE_SAME_COLUMNS = Sentence(
    "give all data files the same columns, or load those that differ as a configuration of their own, and resubmit: "
    "columns that only some files have: {new}"
)
GIVE_SAME_COLUMNS_IN = Sentence(
    "give {file} the columns of the other data files, or load it as a configuration of its own, and resubmit: columns "
    "that only it has: {new}"
)
GIVE_SAME_COLUMNS_IN_BOTH = Sentence(
    "give {file} the columns of the other data files, or load it as a configuration of its own, and resubmit: columns "
    "that only it has: {new}; columns that it lacks: {missing}"
)
INSTALL_TRITON = Sentence("install Triton in the job's environment, or turn torch.compile off with this, and resubmit")
DISABLE_COMPILE = ShellCommand("export TORCHDYNAMO_DISABLE=1")
DRAW_WITHOUT_DISPLAY = Sentence(
    "the connection to the display was lost, and a program that draws on it ends then: have plots drawn to files, with "
    "this in the job script, and resubmit"
)
UNSET_DISPLAY = ShellCommand("unset DISPLAY; export MPLBACKEND=Agg")
RAISE_SHARED_MEMORY = Sentence(
    "shared memory (/dev/shm), not a disk, is full or too small: raise its size (--shm-size of a container), or use "
    "fewer data-loader workers, and resubmit; this, in the job script, shows the size"
)
SHOW_SHARED_MEMORY = ShellCommand("df -h /dev/shm")
PROVIDE_TOKENIZER = Sentence(
    "check whether the model's folder or repository holds the tokenizer's files (tokenizer.json, "
    "tokenizer_config.json): if it does, install sentencepiece or tiktoken in the job's environment; if not, add the "
    "files or name another tokenizer; then resubmit"
)
END_RECURSION = Sentence("{place} calls itself without end: use a loop in its place, or end the calls; then resubmit")
MESSAGE_REMEDIES: tuple[tuple[re.Pattern[str], Sentence, tuple[ShellCommand, ...]], ...] = (
    (re.compile(r"\bon X server\b|cannot connect to X server"), DRAW_WITHOUT_DISPLAY, (UNSET_DISPLAY,)),
    (
        re.compile(r"PTX was compiled with an unsupported toolchain|driver version is insufficient for CUDA runtime"),
        NEWER_THAN_DRIVER,
        (COMPARE_CUDA,),
    ),
    (re.compile(r"invalid device ordinal"), NO_SUCH_GPU, (LIST_GPUS,)),
    (re.compile(r"shared memory\(shm\)|/dev/shm|out of shared memory"), RAISE_SHARED_MEMORY, (SHOW_SHARED_MEMORY,)),
    (re.compile(r"instantiate the backend tokenizer"), PROVIDE_TOKENIZER, ()),
    (re.compile(r"codec can't encode"), USE_UTF8, (SET_UTF8,)),
    (
        re.compile(r"[Tt]orch not compiled with CUDA|PyTorch (?:was )?not compiled with CUDA"),
        INSTALL_CUDA_BUILD,
        (SHOW_CUDA_BUILD,),
    ),
    (
        re.compile(
            r"torch\.cuda\.is_available\(\)(?: is|:) False|machine only has: \[\]|No CUDA GPUs|no CUDA-capable"
            r"|[Ff]ound no NVIDIA driver|Invalid\s+CUDA\s+'device="
        ),
        NO_GPU_VISIBLE,
        (SHOW_GPUS,),
    ),
    (
        re.compile(r"no kernel image is available|invalid value for --gpu-architecture"),
        BUILD_FOR_GPU,
        (SHOW_ARCHITECTURES,),
    ),
    (re.compile(r"couldn't connect to ['\"]?https://huggingface\.co"), DOWNLOAD_FIRST, (WORK_OFFLINE,)),
    (re.compile(r"TritonMissing|Cannot find a working t\s?riton"), INSTALL_TRITON, (DISABLE_COMPILE,)),
)
"""Type and message of an error of the environment or of a setting -> what to do about it."""

_OPTION = r"((?:-{1,2}\w[\w-]{0,60})(?:/-{1,2}\w[\w-]{0,60})?|\w[\w-]{0,60})"
ARGUMENT_REMEDIES: tuple[tuple[re.Pattern[str], Sentence], ...] = (
    (
        re.compile(rf"argument {_OPTION}: ignored explicit argument '((?i:true|false|yes|no|on|off))'"),
        Sentence(
            "{one} is a switch: give {one} to turn it on and leave it out to keep it off, but not {one}={two}; in a "
            "wandb sweep, args_no_boolean_flags in place of args in the sweep's command does so"
        ),
    ),
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
        re.compile(r"arguments are not used by the HfArgumentParser: \['([^'\n]{1,80})'"),
        Sentence("remove {one} from the command line, or correct it: the program does not know it; then resubmit"),
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


CORRECT_INTERPRETER = Sentence(
    "correct the first line of the job script, which names {path}, or install it on the nodes; then resubmit"
)


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
    if row.get("about") == "host_memory":
        return action(RAISE_HOST_MEMORY)
    causes = f"{row.get('type')}: {text}\n{row.get('root_message') or ''}"
    if (library := BROKEN_LIBRARY.search(causes)) is not None:
        return _broken_library_remedy(frame, row, library, message)
    if (library := ABSENT_LIBRARY.search(causes)) is not None:
        return _absent_library_remedy(frame, derived(library[1], message))
    if (variable := UNSET_VARIABLE.search(text)) is not None:
        return action(START_WITH_LAUNCHER, variable=derived(variable[1], message))
    if kind == "config" and (argument := _argument_remedy(text, message)) is not None:
        return argument
    if (script_line := BAD_INTERPRETER.search(text)) is not None:
        return action(CORRECT_INTERPRETER, path=derived(script_line[2], message))
    if row.get("type") == "ShellError" and (match := SHELL_LINE.search(text.strip())) is not None:
        return _shell_remedy(match, message)
    if (weights := weights_remedy(frame, row)) is not None:
        return weights
    if row.get("type") == "RecursionError" and (place := source_line(frame, row)) is not None:
        return action(END_RECURSION, place=place)
    if (folder := folder_to_create(row)) is not None:
        sentence = CREATE_FOLDER if folder.startswith("/") else CREATE_RELATIVE_FOLDER
        quoted = derived(shlex.quote(folder), message)
        return action(sentence, MAKE_FOLDER, folder=derived(folder, message), quoted_folder=quoted)
    if kind in ("asset", "config", "data") and (path := LOCAL_PATH.search(text)) is not None:
        name = path[path.lastindex or 0]
        if TEMPORARY.match(name):
            return None
        return check_path(name, message, where.nodes)
    if kind == "asset" and (remedy := repository_remedy(causes, message, where.nodes)) is not None:
        return remedy
    if (unequal := UNEQUAL_COLUMNS.search(text)) is not None:
        return _columns_remedy(unequal, text, message)
    if (pickled := PICKLED_BY_OTHER.search(text)) is not None:
        return action(LOAD_WITH_WRITER, package=derived(pickled[1], message))
    if PICKLED_BY_NUMPY_2.search(text):
        version, python = derived("2.0", message), interpreter(frame, message)
        return action(
            INSTALL_NUMPY_2, PIP_INSTALL, version=version, requirement=derived("numpy>=2", message), python=python
        )
    if OLD_TRANSFORMERS.search(text):
        python = interpreter(frame, message)
        return action(UPGRADE_TRANSFORMERS, PIP_UPGRADE, package=derived("transformers", message), python=python)
    if kind in ("env", "config", "asset"):
        for pattern, sentence, commands in MESSAGE_REMEDIES:
            if pattern.search(causes):
                return action(sentence, *commands)
    if NO_PROCESS_GROUP.search(text):
        is_norm = "batchnorm.py:" in str(row.get("frames") or "")
        return action(SYNCHRONIZED_NORM if is_norm else INITIALIZE_GROUP)
    if kind == "env" and (name_missing := NAME_MISSING.search(text)) is not None:
        return _name_remedy(row, name_missing, message)
    return _package_remedy(frame, text, message, where) if kind == "env" else None


def _columns_remedy(match: re.Match[str], text: str, message: Value) -> Action:
    """Which file has other columns than the rest, and which."""
    file = BUILT_FROM.search(text)
    values = {"new": derived(match[1], message)}
    if file is None:
        return action(GIVE_SAME_COLUMNS, **values)
    values["file"] = derived(file[1], message)
    if match[2] is None:
        return action(GIVE_SAME_COLUMNS_IN, **values)
    return action(GIVE_SAME_COLUMNS_IN_BOTH, **values, missing=derived(match[2], message))


def _absent_library_remedy(frame: Frame, library: Value) -> Action:
    """How to provide a library that the loader does not find."""
    if PYTORCH_LIBRARY.match(str(library.value)):
        return action(REINSTALL_NEEDING, library=library)
    sentence = PROVIDE_DRIVER if DRIVER_LIBRARY.match(str(library.value)) else PROVIDE_LIBRARY
    return action(sentence, *LOAD_LIBRARY, library=library, python=interpreter(frame, library))


def folder_to_create(row: Event) -> str | None:
    """The folder that is missing for a file to be written; None if the error is another."""
    text = str(row.get("message") or "")
    if (absent := ABSENT_FOLDER.search(text)) is not None:
        return (absent[1] or absent[2]).rstrip("/") or "/"
    if (uncreated := UNCREATED_FILE.search(text)) is not None:
        return os.path.dirname(uncreated[1]) or None
    path = LOCAL_PATH.search(text)
    name = None if path is None else path[path.lastindex or 0]
    if name is None or TEMPORARY.match(name):
        return None
    frames, own = str(row.get("frames") or row.get("frame") or "").split(";"), row.get("user_frame")
    inner = frames[frames.index(str(own)) :] if own in frames else frames
    functions = [frame.rpartition(" in ")[2] for frame in inner]
    if not any(WRITES.search(code) for code in (str(row.get("user_code")), *functions, frames[-1])):
        return None
    folder = os.path.dirname(name.rstrip("/"))
    return None if folder.strip("./") == "" else folder


def weights_remedy(frame: Frame, row: Event) -> Action | None:
    """How to load a state_dict whose names differ as a whole from those of the model; None if the error is another."""
    text, message = str(row.get("message") or ""), frame.value(row, "message")
    if (entry := state_dict_errors.wrapped_entry(text)) is not None:
        place = source_line(frame, row)
        values = {"entry": derived(entry, message)} | ({} if place is None else {"place": place})
        return action(LOAD_ENTRY if place is None else LOAD_ENTRY_AT, **values)
    if (prefix := state_dict_errors.prefix(text)) is not None:
        return action(REMOVE_PREFIX if prefix[1] else WRAP_LATER, prefix=derived(prefix[0], message))
    return None


def _name_remedy(row: Event, match: re.Match[str], message: Value) -> Action:
    """What to install if a package lacks a name: the same package in one release if it imports from itself."""
    module = match[2]
    package = module.partition(".")[0]
    values = {
        name: derived(text, message) for name, text in (("name", match[1]), ("module", module), ("package", package))
    }
    frames = str(row.get("frames") or "").split(";")
    last_frame = PACKAGE_FOLDER.search(frames[-1])
    importer = None if last_frame is None else last_frame[1]
    if module.startswith(("torch._inductor", "torch._dynamo", "torch._functorch")):
        return action(REINSTALL_TORCH, **values)
    if importer == package:
        return action(REINSTALL_PACKAGE, **values)
    if importer is not None:
        return action(MATCH_IMPORTER, importer=derived(importer, message), **values)
    return action(MATCH_VERSIONS, **values)


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


def _package_remedy(frame: Frame, text: str, message: Value, where: ErrorPlace) -> Action | None:
    """How to get a package that is missing, or too old."""
    python = interpreter(frame, message)
    if (match := REQUIREMENT.search(text)) is not None:
        requirement = derived(match[1] or match[2], message)
        return action(INSTALL_REQUIREMENT, PIP_INSTALL, requirement=requirement, python=python)
    if (match := MISSING_MODULE.search(text) or NAMED_PACKAGE.search(text)) is None:
        return None
    module, package = derived(match[1], message), derived(match[1].partition(".")[0], message)
    if where.node is not None:
        return action(INSTALL_ON_NODE, *CHECK_IMPORT, module=module, python=python, node=where.node)
    if package.value != module.value:  # the package is there, without this part of it
        return action(INSTALL_VERSION, *CHECK_IMPORT, module=module, python=python, package=package)
    name = PACKAGES.get(str(module.value))
    known = {} if name is None else {"known_package": derived(name, message)}
    return action(INSTALL_MODULE, *CHECK_IMPORT, module=module, python=python, **known)


def _broken_library_remedy(frame: Frame, row: Event, match: re.Match[str], message: Value) -> Action:
    """What to reinstall for a library that was built for others than those it finds."""
    path, symbol = match.groups(default="")
    library, python = derived(os.path.basename(path), message), interpreter(frame, message)
    other = derived("PyTorch" if PYTORCH_SYMBOL.search(symbol) else "packages", message)
    loaded = (event for event in (*frame.events, row) if os.path.basename(path) in str(event.get("message")))
    module = next((name for event in loaded if (name := package_of_library(event, path)) is not None), None)
    if module in ("torch", "nvidia"):
        return action(FIT_TORCH, CHECK_TORCH, library=library, python=python)
    if module is None:
        return action(REINSTALL, library=library, other=other)
    package = derived(PACKAGES.get(module, module), message)
    extension = EXTENSION_MODULE.search(path)
    known = {} if extension is None else {"extension": derived(extension[1], message)}
    values = {"library": library, "python": python, "package": package, "other": other, **known}
    return action(REINSTALL_LOADER, *REBUILD_PACKAGE, **values)
