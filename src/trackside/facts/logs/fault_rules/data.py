"""Data sets that cannot be read as the job expects."""

from __future__ import annotations

from trackside.facts.logs.fault_rules.rule import Rule, config, data

RULES: tuple[Rule, ...] = (
    data(
        "dataset-build",
        r"DatasetGeneration|CastError|SchemaInferenceError|ArrowInvalid|ArrowTypeError"
        r"|ArrowNotImplementedError|UnexpectedSplits|NonMatchingSplits|Couldn't cast",
    ),
    config(
        "config-json",
        r"JSONDecodeError",
        place=r"deepspeed|hf_argparser|omegaconf|in \w*config\w*\b|training_args",
    ),
    data(
        "parse",
        r"JSONDecodeError|UnicodeDecodeError|ParserError|EmptyDataError|_?csv\.Error|can't decode byte"
        r"|Trailing data|Expecting (?:value|property name|',' delimiter)|Invalid control character|BadGzipFile"
        r"|BadZipFile|tarfile\.\w*Error|UnidentifiedImage"
        r"|cannot identify image|image file is truncated|broken data stream|truncated file|DataLossError"
        r"|corrupted record|truncated record|lmdb\.\w*Error|DecompressionBomb|zlib\.error|Truncated (?:File"
        r"|JPEG|PNG)|LibsndfileError|file signature not found|unexpected end of data|InvalidDataError"
        r"|allow_pickle=False|ImageFileError|Can't parse serialized Example|cv2\.error: .{0,300}\.empty\(\)",
    ),
    data("reader", r"data reader raises an exception"),
    data(
        "columns",
        r"(?i:\bcolumns? (?:name|to remove|\[|.{1,80} not (?:in|found))|not in the dataset|column names"
        r"|not in (?:the )?(?:index|columns)|missing columns?|must have the same columns|Unable to open object"
        r"|no dataset fields|dataset_text_field|None of \[.{1,300}are in the)",
    ),
    data(
        "tokenizer-input",
        r"TextEncodeInput|text input must be of type|text_input must be|must be of type `str`"
        r"|Input .{0,80} is not valid\. Should be a string",
    ),
    data(
        "ragged",
        r"Unable to create tensor|expected sequence of length|stack expects each tensor"
        r"|batch must contain tensors|each element in list of batch|setting an array element with a sequence"
        r"|inhomogeneous shape|unable to (?:collate|stack)",
    ),
    data(
        "empty",
        r"num_samples=0|EmptyDatasetError|(?i:empty dataset|dataset is empty|no (?:training "
        r")?(?:examples|samples|data) (?:found"
        r"|left)|zero (?:examples|samples)|train(?:ing)? (?:data ?)?set (?:is|will be) empty"
        r"|cannot find valid samples)",
    ),
    data(
        "conversation",
        r"Conversation roles must alternate|[Ii]nvalid (?:conversation|role|message)|TemplateError"
        r"|Only user and assistant roles|must alternate user",
    ),
    data(
        "values",
        r"could not convert string to float|malformed|nan (?:values? )?(?:in|found)|contains NaN|out-of-range"
        r"|corrupt(?:ed)? (?:data|sample|record|image|file)|embedding index|token (?:id|index).{0,40}(?:out"
        r"|exceed|larger)",
        unless=r"^(?:argparse|hydra)",
    ),
)
