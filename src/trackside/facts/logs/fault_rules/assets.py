"""Models, tokenizers, repositories and files that cannot be had."""

from __future__ import annotations

from trackside.facts.logs.fault_rules.rule import Rule, asset, config

RULES: tuple[Rule, ...] = (
    asset(
        "hub",
        r"GatedRepo|RepositoryNotFound|EntryNotFound|RevisionNotFound|HFValidationError|HfHubHTTPError"
        r"|OfflineModeIsEnabled|DatasetNotFoundError|gated repo|not a local folder and is not a valid model"
        r"|Repo id must be|[Cc]ouldn't connect to 'https?:|40[134] Client Error|couldn't find (?:it"
        r"|them) in the cached files|on the Hugging Face Hub|Couldn't reach|doesn't exist on the Hub"
        r"|we cannot find the requested files",
    ),
    asset(
        "model-files",
        r"does not appear to have a file named|Error no file named|Can't load (?:the )?(?:tokenizer"
        r"|configuration|config|model|feature extractor|image processor|weights)"
        r"|instantiate the backend tokenizer|Unable to load vocabulary"
        r"|Should have a `model_type` key|Vocab(?:ulary)? file .{0,80}(?:not|exist)|not a valid JSON file"
        r"|Incorrect path_or_model_id|no checkpoint found|Unable to load weights|from_tf=True"
        r"|Can't find a vocabulary file|\[E050\] Can't find model|invalid hash value"
        r"|Resource \S{1,60} not found|nltk\.download",
    ),
    asset("corpus-of-a-package", r"^LookupError\b", place=r"nltk/data\.py"),
    asset(
        "data-files",
        r"DataFilesNotFoundError|No \(supported\) data files|Unable to find '[^']{1,300}'"
        r"|Couldn't find a dataset script|Couldn't find any data file|Couldn't find (?:file|dataset)",
    ),
    config(
        "checkpoint-shape",
        r"size mismatch for|Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|loaded state dict"
        r"|ScopeParamShapeError|shapes? .{0,60}checkpoint|[Cc]heckpoint (?:shape|world size|was saved with)",
    ),
    asset(
        "corrupt-file",
        r"SafetensorError|PytorchStreamReader|invalid load key|Ran out of input|UnpicklingError|unexpected EOF"
        r"|Invalid magic number|file might be corrupted|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer"
        r"|Failed to interpret file|central directory|Unsuccessful TensorSliceReader"
        r"|Error -3 while decompressing",
        unless=r"DatasetGeneration|parquet|Arrow",
    ),
    asset("checkpoint-read", r"^EOFError", place=r"torch/serialization|_weights_only_unpickler|pickle|in load\b"),
    asset(
        "checkpoint-missing",
        r"(?i:no valid checkpoint|can't find a valid checkpoint|checkpoint .{0,200}(?:not found|does not exist"
        r"|is not|missing|corrupt))",
    ),
    config(
        "config-file",
        r"(?:FileNotFoundError|No such file|not found|does not exist).{0,300}(?:\.ya?ml\b|\.toml\b|\.ini\b"
        r"|(?:ds|deepspeed|zero|accelerate|train|fsdp)\w*config\w*\.json|ds_\w*\.json)"
        r"|path.{0,10}\(None\)",
    ),
    asset(
        "path",
        r"FileNotFoundError|NotADirectoryError|No such file or directory|\[Errno 2\]"
        r"|[Dd]irectory .{1,300} (?:not found|does not exist)|[Cc]ould not open file"
        r"|[Ff]ailed to find any matching files|NoSuchKey|NoSuchBucket"
        r"|[Pp]ath .{1,300} does not exist|IsADirectoryError|[Cc]an ?not find (?:file|path|directory)"
        r"|errno = 2\b|[Ff]ile .{1,300}(?<!signature) (?:not found|does not exist)|[Dd]ataset not found"
        r"|non-existent directory|\b(?:dir|file|path|folder) .{1,300} not exists?\b",
    ),
    asset(
        "remote",
        r"(?i:\b(?:MaxRetryError|ProxyError|SSLError|ConnectTimeout|ReadTimeout|ConnectionError"
        r"|NoCredentialsError|EndpointConnectionError|ClientError|gaierror|URLError|HTTPError"
        r"|ChunkedEncodingError)\b"
        r"|HTTPSConnectionPool|Network is unreachable|Name or service not known|AccessDenied"
        r"|Temporary failure in name resolution|cas service|xet)",
    ),
    config("registry", r"is not in the [\w:. ]{1,60}registry|not found in .{1,60} registry|is not registered\b"),
)
