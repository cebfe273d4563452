"""The table behind :mod:`trackside.facts.logs.fault_class`: which sentences, types and places speak of which class.

Order counts: the first rule that fits wins. Rules that know a sentence come before those that know only a type, and
those before the ones that know only where the exception was raised. One row a cause, so the file is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trackside.finding import Certainty

Fault = Literal["data", "config", "env", "asset", "code"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Fits where every pattern given is found. ``certainty`` is that of the class, not of the exception."""

    id: str
    fault: Fault
    certainty: Certainty
    text: str = ""
    """In the lines "type: message" of the last and of the oldest exception, and the types between."""
    place: str = ""
    """In the frames "file:line in function", one a line, and the user's source line."""
    unless: str = ""
    """Veto, in the same lines as ``text``."""


_SURE, _LIKELY, _HINT = Certainty.ESTABLISHED, Certainty.SUPPORTED, Certainty.POSSIBLE

_DATA_PLACE = (
    r"(?i:/datasets/\w|arrow_dataset|formatting\.py|data_collator|collate|__getitem__|_data/|data_utils"
    r"|dataset\w*\.py|dataloader|data_?loading"
    r"|in (?:\w*preprocess\w*|\w*tokeni[sz]e\w*|\w*encode\w*|read_\w+|load_(?:data|rows|examples|samples"
    r"|jsonl?|csv)\w*|parse_(?:line|row|record|example)\w*"
    r"|\w*dataset\w*|\w*transform_(?:row|example|sample)\w*|make_batch\w*|batches)\b|_objects\.pyx|h5py"
    r"|pandas/io|pyarrow|webdataset|nvidia/dali)"
)
_DATA_CODE = (
    r"\b(?:row|example|sample|batch|record|item|line|feature|entry|datum|df)s?\w{0,12}\[|json\.loads\("
    r"|\.readline|csv\."
)
_CONFIG_PLACE = (
    r"(?i:argparse|parse_args|hf_argparser|omegaconf|hydra|training_args|__post_init__|in \w*(?:config|hparams"
    r"|arguments)\w*$|/config\w*\.py)"
)
_CONFIG_CODE = r"\b(?:cfg|conf|config|hparams|opts?)\w{0,8}\["
_OPTIONS = r"(?:\w*(?:Arguments|Config|Args))"
"""Classes that hold options."""
_PACKAGE_CALL = (
    r"(?:\w*Trainer|Accelerator|AdamW|\w*ForCausalLM|\w*Tokenizer\w*|LightningModule|DataLoader|GradScaler|LLM)"
)
_OF_A_RELEASE = (
    r"evaluation_strategy|eval_strategy|tokenizer|processing_class|num_items_in_batch|max_seq_length|dispatch_batches"
    r"|use_seedable_sampler|device_placement|cache_position|no_cuda|use_cpu|gradient_checkpointing_kwargs"
    r"|lr_scheduler_kwargs|corda_config|eva_config|lora_bias|exclude_modules|trainable_token_indices|use_dora|use_rslora"
    r"|layer_replication|megatron_core|target_parameters|attn_implementation|torch_dtype|dtype"
)
"""Options that came or went with a release of transformers, accelerate, peft or trl."""

RULES: tuple[Rule, ...] = (
    # -- what the command line, the launcher and the container say before Python runs
    Rule(
        "usage",
        "config",
        _SURE,
        r"^(?:argparse\.|click\.|absl\.|hydra\.|omegaconf\.|jsonargparse)|ConfigAttributeError|ConfigKeyError"
        r"|ConfigCompositionException|MissingMandatoryValue",
    ),
    Rule(
        "container-driver",
        "env",
        _SURE,
        (
            r"^ContainerError: (?s:.{0,1500})(?:nvidia-container-cli|hooks\.d|mkdir|seccomp|device driver|"
            r"unsatisfied condition)"
        ),
    ),
    Rule("container-option", "config", _SURE, r"^ContainerError: (?s:.{0,600})(?:mount|argument|option|workdir|chdir)"),
    Rule("container-image", "asset", _LIKELY, r"^ContainerError: "),
    Rule("command", "env", _LIKELY, r"^(?:CommandNotFound|SharedLibraryError): "),
    Rule("script-path", "config", _LIKELY, r"can't open file|can't find '__main__'"),
    # -- environment: shared memory, limits, hardware and drivers
    Rule(
        "shared-memory",
        "env",
        _SURE,
        r"(?i:shared memory\(shm\)|/dev/shm|shared memory (?:segment|object)|out of shared memory)",
    ),
    Rule(
        "limits",
        "env",
        _SURE,
        r"Too many open files|received 0 items of ancdata|can't start new thread"
        r"|Resource temporarily unavailable",
    ),
    Rule("device-count", "config", _LIKELY, r"invalid device ordinal|Duplicate GPU detected"),
    Rule(
        "device-code",
        "env",
        _SURE,
        r"no kernel image|not compiled with CUDA|driver version is insufficient|driver on your system"
        r"|No CUDA GPUs|no CUDA-capable|[Ff]ound no NVIDIA driver"
        r"|unsupported display driver|system not yet initialized|forward compatibility|only supports Ampere"
        r"|CUDA unknown error|unsupported toolchain|version mismatch.{0,80}(?:CUDA|driver)",
    ),
    Rule(
        "device-missing",
        "env",
        _LIKELY,
        r"^(?:Assertion|Runtime|Value|Environment|OS)Error\b|^Exception\b",
        place=r"(?:assert|if not) torch\.(?:cuda|npu|xpu)\.is_available\(\)",
    ),
    Rule(
        "cuda-build",
        "env",
        _SURE,
        r"CUDA Setup failed|CUDA_HOME|Error building extension|[Nn]inja is required|nvcc|PTXAS|ptxas"
        r"|CUDAMismatch|CUDA version .{0,60}(?:mismatch|does not match)|JIT load|Failed to find C compiler"
        r"|libdevice|compiled with a different CUDA|detected CUDA version",
    ),
    Rule("hardware", "env", _LIKELY, r"uncorrectable ECC|NVLink error|GPU is lost|fallen off the bus"),
    Rule(
        "label-range",
        "data",
        _LIKELY,
        r"device-side assert|Target \d+ is out of bounds|index out of range in self|IndexError: Target"
        r"|outside the valid range of \[|Class values must be smaller|label_ids"
        r"|labels? (?:must be|out of range|should be)",
    ),
    Rule("library-start", "env", _HINT, r"_STATUS_(?:NOT_INITIALIZED|ARCH_MISMATCH|VERSION_MISMATCH|NOT_SUPPORTED)"),
    Rule("cuda-access", "code", _HINT, r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|HIP error"),
    # -- environment: packages and versions
    Rule("circular-import", "code", _SURE, r"circular import"),
    Rule(
        "module-missing",
        "env",
        _SURE,
        r"ModuleNotFoundError|No module named|DistributionNotFound|PackageNotFoundError|No package metadata"
        r"|VersionConflict|ContextualVersionConflict",
    ),
    Rule(
        "own-name-missing",
        "code",
        _LIKELY,
        r"cannot import name .{1,200} from .{1,200} \((?!.{0,300}(?:site-packages|dist-packages))[~/.]",
    ),
    Rule("import", "env", _LIKELY, r"\bImportError\b", unless=r"backend tokenizer|Cannot handle|Repo id"),
    Rule(
        "library-file",
        "env",
        _SURE,
        r"cannot open shared object|undefined symbol|GLIBC|GLIBCXX|DLL load failed|libcud\w*\.so"
        r"|failed to map segment|symbol lookup error|Library not loaded|symbol \S{1,120} version .{1,80} not defined"
        r"|WinError 1455|paging file is too small",
    ),
    Rule(
        "binary-mismatch",
        "env",
        _SURE,
        r"numpy\.dtype size changed|compiled using NumPy|numpy\.core\.multiarray failed"
        r"|operator torchvision::nms|Couldn't load custom C\+\+ ops|binary incompatib|_ARRAY_API"
        r"|Descriptors can ?not (?:not )?be created directly|working triton installation",
    ),
    Rule(
        "package-required",
        "env",
        _SURE,
        r"pip install|isn't installed|is not installed|to be installed|[Pp]lease (?:install|upgrade|update)"
        r"|FlashAttention\d? has been toggled on|flash[-_]attn|doesn't seem to be installed"
        r"|requires? (?:the )?[`\w.\[\]' -]{1,60} (?:library|package)|(?:>=|<=|==|>|<) ?\d[\w.]* (?:is"
        r"|are) required|is required for (?:a|the) normal|requires? .{0,80}(?:>=|<=|==) ?v?\d"
        r"|need to (?:install|upgrade)|was not found in your environment|version .{0,40}(?:too old"
        r"|not supported|or (?:newer|later|higher))|minimum (?:required )?version"
        r"|Your setup doesn't support bf16",
        unless=r"backend tokenizer|not a local folder|Cannot handle|Repo id",
    ),
    Rule(
        "architecture-unknown",
        "env",
        _SURE,
        r"does not recognize this architecture|is not currently imported|does not exist or is not currently"
        r"|Unrecognized configuration class|untagged enum|rope_scaling|Unknown quantization type"
        r"|does not support Flash Attention|does not support an attention implementation|weights_only"
        r"|Weights only load failed|Model architectures .{1,200} (?:are|is) not supported",
    ),
    Rule("architecture-key", "env", _LIKELY, r"^KeyError: '[\w-]{2,40}'", place=r"configuration_auto\.py"),
    Rule(
        "attribute-of-package",
        "env",
        _LIKELY,
        r"AttributeError: module '(?:numpy|np|torch|transformers|datasets|tensorflow|tf|jax|keras|PIL|pandas"
        r"|triton|flash_attn|accelerate|peft|trl|deepspeed|torchvision|torchaudio|collections|inspect|pkgutil"
        r"|distutils)\b"
        r"|'(?:Accelerator\w{0,8}|DynamicCache|TrainingArguments|\w{0,30}Tokenizer(?:Fast)?)' object has no attribute",
    ),
    Rule(
        "argument-of-a-release",  # options that one release has and another has not, wherever they are passed
        "env",
        _LIKELY,
        rf"got an unexpected keyword argument '(?:{_OF_A_RELEASE})'",
    ),
    Rule(
        "option-of-a-class",  # what is read from a configuration is handed to it whole: a misspelt option
        "config",
        _LIKELY,
        rf"TypeError: {_OPTIONS}\.\w+\(\) got an unexpected keyword argument",
    ),
    Rule(
        "option-of-a-class-unnamed",  # Python before 3.10 does not name the class
        "config",
        _LIKELY,
        r"TypeError: __init__\(\) got an unexpected keyword argument",
        place=rf"\b{_OPTIONS}\(",
    ),
    Rule(
        "argument-of-package",
        "env",
        _LIKELY,
        rf"TypeError: {_PACKAGE_CALL}\.\w+\(\) got an unexpected keyword argument",
    ),
    Rule("credentials", "env", _LIKELY, r"api_key not configured|wandb\.(?:errors|sdk)|host='api\.wandb\.ai'"),
    Rule("encoding", "env", _LIKELY, r"UnicodeEncodeError|locale\.Error"),
    Rule("permission", "env", _LIKELY, r"PermissionError|\[Errno 13\]|Permission denied"),
    # -- assets
    Rule(
        "hub",
        "asset",
        _SURE,
        r"GatedRepo|RepositoryNotFound|EntryNotFound|RevisionNotFound|HFValidationError|HfHubHTTPError"
        r"|OfflineModeIsEnabled|DatasetNotFoundError|gated repo|not a local folder and is not a valid model"
        r"|Repo id must be|[Cc]ouldn't connect to 'https?:|40[134] Client Error|couldn't find (?:it"
        r"|them) in the cached files|on the Hugging Face Hub|Couldn't reach|doesn't exist on the Hub"
        r"|we cannot find the requested files",
    ),
    Rule(
        "model-files",
        "asset",
        _SURE,
        r"does not appear to have a file named|Error no file named|Can't load (?:the )?(?:tokenizer"
        r"|configuration|config|model|feature extractor|image processor|weights)"
        r"|instantiate the backend tokenizer|Unable to load vocabulary"
        r"|Should have a `model_type` key|Vocab(?:ulary)? file .{0,80}(?:not|exist)|not a valid JSON file"
        r"|Incorrect path_or_model_id|no checkpoint found|Unable to load weights|from_tf=True"
        r"|Can't find a vocabulary file|\[E050\] Can't find model|invalid hash value"
        r"|Resource \S{1,60} not found|nltk\.download",
    ),
    Rule("corpus-of-a-package", "asset", _SURE, r"^LookupError\b", place=r"nltk/data\.py"),
    Rule(
        "data-files",
        "asset",
        _SURE,
        r"DataFilesNotFoundError|No \(supported\) data files|Unable to find '[^']{1,300}'"
        r"|Couldn't find a dataset script|Couldn't find any data file|Couldn't find (?:file|dataset)",
    ),
    Rule(
        "checkpoint-shape",
        "config",
        _LIKELY,
        r"size mismatch for|Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|loaded state dict"
        r"|shapes? .{0,60}checkpoint|[Cc]heckpoint (?:shape|world size|was saved with)",
    ),
    Rule(
        "corrupt-file",
        "asset",
        _SURE,
        r"SafetensorError|PytorchStreamReader|invalid load key|Ran out of input|UnpicklingError|unexpected EOF"
        r"|Invalid magic number|file might be corrupted|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer"
        r"|Failed to interpret file|central directory|Unsuccessful TensorSliceReader"
        r"|Error -3 while decompressing",
        unless=r"DatasetGeneration|parquet|Arrow",
    ),
    Rule(
        "checkpoint-read",
        "asset",
        _LIKELY,
        r"^EOFError",
        place=r"torch/serialization|_weights_only_unpickler|pickle|in load\b",
    ),
    Rule(
        "checkpoint-missing",
        "asset",
        _LIKELY,
        r"(?i:no valid checkpoint|can't find a valid checkpoint|checkpoint .{0,200}(?:not found|does not exist"
        r"|is not|missing|corrupt))",
    ),
    Rule(
        "config-file",
        "config",
        _LIKELY,
        r"(?:FileNotFoundError|No such file|not found|does not exist).{0,300}(?:\.ya?ml\b|\.toml\b|\.ini\b"
        r"|(?:ds|deepspeed|zero|accelerate|train|fsdp)\w*config\w*\.json|ds_\w*\.json)",
    ),
    Rule(
        "path",
        "asset",
        _SURE,
        r"FileNotFoundError|NotADirectoryError|No such file or directory|\[Errno 2\]"
        r"|[Dd]irectory .{1,300} (?:not found|does not exist)|[Cc]ould not open file"
        r"|[Ff]ailed to find any matching files|NoSuchKey|NoSuchBucket"
        r"|path .{1,300} does not exist|IsADirectoryError|[Cc]an ?not find (?:file|path|directory)"
        r"|errno = 2\b|File .{1,300} (?:not found|does not exist)",
    ),
    Rule(
        "remote",
        "asset",
        _LIKELY,
        r"(?i:\b(?:MaxRetryError|ProxyError|SSLError|ConnectTimeout|ReadTimeout|ConnectionError"
        r"|NoCredentialsError|EndpointConnectionError|ClientError|gaierror|URLError|HTTPError"
        r"|ChunkedEncodingError)\b"
        r"|HTTPSConnectionPool|Network is unreachable|Name or service not known|AccessDenied"
        r"|Temporary failure in name resolution|cas service|xet)",
    ),
    Rule(
        "registry",
        "config",
        _SURE,
        r"is not in the [\w:. ]{1,60}registry|not found in .{1,60} registry|is not registered\b",
    ),
    # -- data
    Rule(
        "dataset-build",
        "data",
        _SURE,
        r"DatasetGeneration|CastError|SchemaInferenceError|ArrowInvalid|ArrowTypeError"
        r"|ArrowNotImplementedError|UnexpectedSplits|NonMatchingSplits|Couldn't cast",
    ),
    Rule(
        "config-json",
        "config",
        _LIKELY,
        r"JSONDecodeError",
        place=r"deepspeed|hf_argparser|omegaconf|in \w*config\w*\b|training_args",
    ),
    Rule(
        "parse",
        "data",
        _SURE,
        r"JSONDecodeError|UnicodeDecodeError|ParserError|EmptyDataError|_?csv\.Error|can't decode byte"
        r"|Trailing data|Expecting (?:value|property name|',' delimiter)|Invalid control character|BadGzipFile"
        r"|BadZipFile|tarfile\.\w*Error|UnidentifiedImage"
        r"|cannot identify image|image file is truncated|broken data stream|truncated file|DataLossError"
        r"|corrupted record|truncated record|lmdb\.\w*Error|DecompressionBomb|zlib\.error|Truncated (?:File"
        r"|JPEG|PNG)|LibsndfileError|file signature not found|unexpected end of data|InvalidDataError"
        r"|allow_pickle=False|cv2\.error: .{0,300}\.empty\(\)",
    ),
    Rule(
        "columns",
        "data",
        _SURE,
        r"(?i:\bcolumns? (?:name|to remove|\[|.{1,80} not (?:in|found))|not in the dataset|column names"
        r"|not in (?:the )?(?:index|columns)|missing columns?|must have the same columns|Unable to open object"
        r"|no dataset fields|dataset_text_field|None of \[.{1,300}are in the)",
    ),
    Rule(
        "tokenizer-input",
        "data",
        _SURE,
        r"TextEncodeInput|text input must be of type|text_input must be|must be of type `str`"
        r"|Input .{0,80} is not valid\. Should be a string",
    ),
    Rule(
        "ragged",
        "data",
        _SURE,
        r"Unable to create tensor|expected sequence of length|stack expects each tensor"
        r"|batch must contain tensors|each element in list of batch|setting an array element with a sequence"
        r"|inhomogeneous shape|unable to (?:collate|stack)",
    ),
    Rule(
        "empty",
        "data",
        _SURE,
        r"num_samples=0|EmptyDatasetError|(?i:empty dataset|dataset is empty|no (?:training "
        r")?(?:examples|samples|data) (?:found"
        r"|left)|zero (?:examples|samples)|train(?:ing)? (?:data ?)?set (?:is|will be) empty"
        r"|cannot find valid samples)",
    ),
    Rule(
        "conversation",
        "data",
        _LIKELY,
        r"Conversation roles must alternate|[Ii]nvalid (?:conversation|role|message)|TemplateError"
        r"|Only user and assistant roles|must alternate user",
    ),
    Rule(
        "values",
        "data",
        _LIKELY,
        r"could not convert string to float|malformed|nan (?:values? )?(?:in|found)|contains NaN|out-of-range"
        r"|corrupt(?:ed)? (?:data|sample|record|image|file)|embedding index|token (?:id|index).{0,40}(?:out"
        r"|exceed|larger)",
        unless=r"^(?:argparse|hydra)",
    ),
    # -- configuration
    Rule(
        "option",
        "config",
        _SURE,
        r"HfArgumentParser|[Uu]nrecognized (?:arguments|option|key|config)|[Uu]nknown (?:argument|option|flag"
        r"|config|optimizer|scheduler|model name|dataset name|loss|activation|key)|[Uu]ndefined dataset"
        r"|not allowed with|mutually exclusive"
        r"|[Uu]nexpected key(?!word)|is not in struct|[Ii]nvalid (?:choice|value for|option|override)|extra (?:fields"
        r"|inputs) (?:not|are not) permitted|ValidationError|validation errors?\b|MisconfigurationException"
        r"|ConfigError|ConfigurationError|DeepSpeedConfig|existing deepspeed config",
    ),
    Rule(
        "choice",
        "config",
        _SURE,
        r"(?:is not a valid|is not one of|not in list|must be one of|should be one of"
        r"|[Aa]llowed (?:precision )?values|[Ee]xpected one of|please select one of|[Ss]upported (?:values"
        r"|types|options|precisions)|[Cc]hoose (?:from|one)|valid options|[Ii]nvalid (?:learning rate"
        r"|precision|strategy|batch size|backend|dtype|beta|momentum|weight_decay|lr)\b"
        r"|Precision '.{1,40}' is invalid)",
    ),
    Rule(
        "adapter",
        "config",
        _SURE,
        r"[Tt]arget modules|PeftModule|target_modules|only the following modules are supported"
        r"|purely quantized|loaded in 8-?bit|not compatible with .{0,40}(?:LoRA|PEFT|quantiz)",
    ),
    Rule(
        "combination",
        "config",
        _LIKELY,
        r"requires? the save and eval|requires? .{1,100} (?:to be set|to match|to be enabled|=True|=False)"
        r"|cannot be used (?:with|together|when)|can't be used with|(?:not|in)[ -]?compatible (?:with|options)"
        r"|both .{1,100} (?:set|specified|provided)|only one of|at the same time|conflict"
        r"|not supported (?:with|when|for|in|by)|is not supported|does not support|overwrite_output_dir"
        r"|already exists and is not empty|FileExistsError|trust_remote_code|mixed precision requires"
        r"|[Aa]sking to pad|no padding token|pad_token|chat_template|find_unused_parameters"
        r"|Expected to have finished reduction",
        unless=r"layer",
    ),
    Rule(
        "division",
        "config",
        _LIKELY,
        r"(?i:divisible|not a multiple of|must be a multiple|batch.{0,30}(?:is not equal|not equal to"
        r"|mismatch)|train_batch_size|world[ _]?size|nproc_per_node|num_gpus"
        r"|pipeline[ _-](?:model[ _-])?parallel|tensor[ _-](?:model[ _-])?parallel|micro[ _-]?batch)",
    ),
    Rule(
        "launch",
        "config",
        _LIKELY,
        r"MASTER_ADDR|environment variable|KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_\w+|SLURM_\w+"
        r"|CUDA_VISIBLE_DEVICES)'|[Dd]efault process group has not been initialized|Address family",
    ),
    Rule(
        "yaml",
        "config",
        _SURE,
        r"yaml\.\w|(?:Scanner|Parser|Constructor)Error: .{0,200}(?:mapping|block|yaml)|toml\w*\."
        r"|TOMLDecodeError|configparser",
    ),
    Rule(
        "length",
        "config",
        _LIKELY,
        r"(?i:longer than the (?:maximum|specified)|exceeds? (?:the )?(?:maximum|max|model|context|block)"
        r"|max_(?:seq|model|position)\w*.{0,80}(?:larger|greater|exceed|less)|sequence length .{0,60}(?:larger"
        r"|longer|exceed|greater))",
    ),
    # -- programming errors, then where it was raised
    Rule(
        "name",
        "code",
        _SURE,
        r"^(?:NameError|UnboundLocalError|SyntaxError|IndentationError|TabError|RecursionError"
        r"|NotImplementedError|ZeroDivisionError)\b",
    ),
    Rule("os-environ", "config", _LIKELY, r"^KeyError", place=r"os\.environ|/os\.py:\d+ in __getitem__"),
    Rule(
        "data-place",
        "data",
        _LIKELY,
        r"^(?:Key|Index|Value|Type|Attribute|Assertion|Runtime|Overflow|Lookup|Unicode)Error\b|^OSError"
        r"|^StopIteration",
        place=_DATA_PLACE,
        unless=r"has no attribute '\w+'\. Did you mean|got an unexpected keyword|positional arguments?"
        r"|missing \d+ required",
    ),
    Rule("data-code", "data", _LIKELY, r"^(?:Key|Index|Value|Type)Error\b", place=_DATA_CODE),
    Rule(
        "number-as-text",  # 1e-5 in YAML is a string
        "config",
        _LIKELY,
        r"^TypeError: '[<>=]{1,2}' not supported between instances of "
        r"'(?:(?:float|int)' and 'str|str' and '(?:float|int))'",
        place=r"torch/optim|lr_scheduler",
    ),
    Rule("config-code", "config", _LIKELY, r"^KeyError\b", place=_CONFIG_CODE),
    Rule("config-place", "config", _LIKELY, r"^(?:Value|Key|Type|Assertion|Attribute)Error\b", place=_CONFIG_PLACE),
    Rule(
        "expected",
        "config",
        _HINT,
        r"^(?:ValueError|AssertionError): .{0,200}(?:must be|should be|expected|has to be|needs to be"
        r"|cannot be)\b",
        unless=r"(?i:shape|tensor|dim|layer|input)",
    ),
    Rule(
        "model-shape",
        "config",
        _HINT,
        r"mat1 and mat2|[Ss]hape mismatch|shapes cannot be multiplied",
        place=r"modeling_|/models?/",
    ),
    Rule("call", "code", _LIKELY, r"^(?:TypeError|AttributeError|IndexError|KeyError|AssertionError)\b"),
)
