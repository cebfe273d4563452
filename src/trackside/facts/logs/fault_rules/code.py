"""Programming errors, and what the source location of an exception shows about its class."""

from __future__ import annotations

from trackside.facts.logs.fault_rules.rule import Rule, code, config, data

DATA_PLACE = (
    r"(?i:/datasets/\w|arrow_dataset|formatting\.py|data_collator|collate"
    r"|^(?!.{0,200}/torch/nn/).{0,300} in __getitem__"
    r"|torch/utils/data/_utils/|[a-z]{2,}_data/|data_utils"
    r"|dataset\w*\.py:\d+ in (?!forward)|data_?load(?:er|ing)"
    r"|in (?:\w*preprocess\w*|\w*tokeni[sz]e\w*|encode|\w*encode_(?:plus|batch|example|row|sample|text)\w*|batch_encode"
    r"|read_\w+|load_(?:data|rows|examples|samples"
    r"|jsonl?|csv)\w*|parse_(?:line|row|record|example)\w*"
    r"|\w*dataset\w*|\w*transform_(?:row|example|sample)\w*|make_batch\w*|batches)\b|_objects\.pyx|h5py"
    r"|pandas/io|pyarrow|webdataset|nvidia/dali)"
)
DATA_CODE = (
    r"\b(?:row|example|sample|batch|record|item|line|feature|entry|datum|df)s?\w{0,12}\[|json\.loads\("
    r"|\.readline|csv\."
)
DATA_TYPE = r"(?:NoneType|float|int|str|dict|list|bool)"
"""Types of values that data sets hold: an error that names another is about the code."""
CONFIG_PLACE = (
    r"(?i:argparse|parse_args|hf_argparser|omegaconf|hydra|training_args|__post_init__|in \w*(?:config|hparams"
    r"|arguments)\w*$|/config\w*\.py)"
)
CONFIG_CODE = r"\b(?:cfg|conf|config|hparams|opts?)\w{0,8}\["

RULES: tuple[Rule, ...] = (
    code(
        "name",
        r"^(?:NameError|UnboundLocalError|SyntaxError|IndentationError|TabError|RecursionError"
        r"|NotImplementedError|ZeroDivisionError)\b",
    ),
    config("os-environ", r"^KeyError", place=r"os\.environ|/os\.py:\d+ in __getitem__"),
    data(
        "data-place",
        r"^(?:Key|Index|Value|Assertion|Runtime|Overflow|Lookup|Unicode)Error\b|^OSError|^StopIteration"
        rf"|^AttributeError: (?:Caught |'{DATA_TYPE}' object)"
        rf"|^TypeError: .{{0,200}}(?:\b{DATA_TYPE}\b|(?:string|list) indices)",
        place=DATA_PLACE,
        unless=r"has no attribute '\w+'\. Did you mean|got an unexpected keyword|positional arguments?"
        r"|missing \d+ required|to unpack|is not an iterator|on the same device|device type tensor",
    ),
    data("data-code", r"^(?:Key|Index|Value|Type)Error\b", place=DATA_CODE),
    config(
        "number-as-text",  # 1e-5 in YAML is a string
        r"^TypeError: (?:'[<>=]{1,2}' not supported between instances of|unsupported operand type\(s\) for .{1,20}:) "
        r"'(?:(?:float|int)' and 'str|str' and '(?:float|int))'",
        place=r"torch/optim|lr_scheduler",
    ),
    config("config-code", r"^KeyError\b", place=CONFIG_CODE),
    config(
        "config-place",
        r"^(?:Value|Key|Type|Assertion)Error\b|^Exception\b|^AttributeError: 'NoneType'",
        place=CONFIG_PLACE,
        unless=r"to unpack",
    ),
    config(
        "expected",
        r"^(?:ValueError|AssertionError): .{0,200}(?:must be|should be|expected|has to be|needs to be"
        r"|cannot be)\b",
        unless=r"(?i:shape|tensor|dim|layer|input|values? to unpack)",
    ),
    config("model-shape", r"mat1 and mat2|[Ss]hape mismatch|shapes cannot be multiplied", place=r"modeling_|/models?/"),
    code("call", r"^(?:TypeError|AttributeError|IndexError|KeyError|AssertionError)\b"),
)
