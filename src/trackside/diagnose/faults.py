"""Which class of fault an exception of the job's own is: data, config, env, asset or code. Pure.

Words in "type: message" of the exception and of the oldest in its chain count first, then the functions it
was raised in, then its bare type; the first that fits wins. The classes are those of seed document 002, A1;
``code`` is a programming error that fits none of them.
"""

from __future__ import annotations

import re

from trackside.model import Event

_WORDS: dict[str, tuple[str, ...]] = {
    # packages, drivers and architectures that the installed versions do not know
    "env": (
        r"ModuleNotFoundError|DistributionNotFound|VersionConflict|PackageNotFoundError|undefined symbol|GLIBC",
        r"cannot open shared object|version `|does not recognize this architecture|is not currently imported",
        r"no kernel image|not compiled with|compiled without|driver version is insufficient|driver on your system",
        r"CUDA Setup failed|CUDA_HOME|nvcc|ninja|requires? .{0,60}(?:>=|==|to be installed)|pip install",
        r"not installed|isn't installed|please (?:install|upgrade|update)|shared memory|/dev/shm|No CUDA GPUs",
        r"no CUDA-capable|invalid device ordinal|command not found|has no attribute '__version__'",
    ),
    # models, tokenizers, checkpoints, repositories
    "asset": (
        r"RepoError|RepositoryNotFound|EntryNotFound|RevisionNotFound|GatedRepo|gated repo|HFValidation|OfflineMode",
        r"not a valid model identifier|couldn't connect to|can't load (?:the )?(?:tokenizer|model|config)",
        r"instantiate the backend tokenizer|does not appear to have a file named|no file named|40[134] Client Error",
        r"Incorrect path_or_model_id|SafetensorError|Unable to load weights|not a local folder",
        r"(?:No such file|not found|does not exist).{0,200}(?:config\.json|tokenizer|model|weights|checkpoint)",
        r"(?:No such file|not found|does not exist).{0,200}\.(?:safetensors|bin|pth?|ckpt)\b",
    ),
    "data": (
        r"DatasetGeneration|CastError|JSONDecodeError|UnicodeDecodeError|ArrowInvalid|ParserError|DataFilesNotFound",
        r"EmptyDataset|CSV|parquet|malformed|corrupt|UnidentifiedImage|cannot identify image|\bcolumns?\b",
        r"num_samples|empty dataset|dataset is empty|zero examples|index out of range|out of bounds|decode byte",
        r"(?:No such file|does not exist).{0,200}(?:data|shard|train|image|\.(?:jsonl?|csv|txt|arrow|h5|tar|npy)\b)",
        r"Target \d+ is out of bounds|\blabels?\b",
    ),
    "config": (
        r"HfArgumentParser|unrecognized arguments|argparse|unexpected keyword|Undefined dataset|Target modules",
        r"PeftModule|requires? the save and eval|ConfigAttribute|ConfigKeyError|omegaconf|hydra|yaml",
        r"ValidationError|MisconfigurationException|must be|should be|expected .{0,60} (?:but|got)|not supported",
        r"unsupported|invalid (?:choice|value|argument)|not allowed|mutually exclusive|incompatible|--\w",
        r"divisible|cannot be used|conflict|only one of",
    ),
}
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "data": (
        r"__getitem__|__iter__|collate|dataset|dataloader|tokeni[sz]|encode|decode|preprocess|transforms?\b|read_\w",
    ),
    "asset": (r"from_pretrained|load_model|load_weights",),
    "config": (r"argparse|parse_args|config|post_init",),
}
_CODE = ("NameError", "UnboundLocalError", "SyntaxError", "IndentationError", "AttributeError", "TypeError")


def _compiled(table: dict[str, tuple[str, ...]]) -> dict[str, re.Pattern[str]]:
    return {kind: re.compile("|".join(rows), re.IGNORECASE) for kind, rows in table.items()}


_IN_TEXT, _IN_FRAMES = _compiled(_WORDS), _compiled(_FUNCTIONS)


def fault_class(row: Event) -> str | None:
    """data, config, env, asset or code; None where neither text nor frames tell."""
    name = str(row.get("type") or "").rsplit(".", 1)[-1]
    text = " ".join(str(row.get(field) or "")[:1000] for field in ("type", "message", "root_type", "root_message"))
    frames = str(row.get("frames") or row.get("user_frame") or row.get("frame") or "")
    for patterns, part in ((_IN_TEXT, text), (_IN_FRAMES, ";".join(frames.split(";")[-6:]))):
        kind = next((kind for kind, pattern in patterns.items() if pattern.search(part)), None)
        if kind is not None:
            return kind
    if name in ("FileNotFoundError", "KeyError", "IndexError"):
        return "data"
    if name == "ImportError":
        return "env"
    if name in _CODE:
        return "code"
    return "config" if name in ("ValueError", "AssertionError", "NotImplementedError") else None
