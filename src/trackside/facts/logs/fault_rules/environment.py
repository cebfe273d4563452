"""Errors of the command line, the launcher, the container, the machine and the installed packages."""

from __future__ import annotations

from trackside.facts.logs.fault_rules.rule import Rule, asset, code, config, data, env

OPTIONS = r"(?:\w*(?:Arguments|Config|Args))"
"""Classes that hold options."""
PACKAGE_CALL = (
    r"(?:\w*Trainer|Accelerator|AdamW|\w*ForCausalLM|\w*Tokenizer\w*|LightningModule|DataLoader|GradScaler|LLM)"
)
OF_A_RELEASE = (
    r"evaluation_strategy|eval_strategy|tokenizer|processing_class|num_items_in_batch|max_seq_length|dispatch_batches"
    r"|use_seedable_sampler|device_placement|cache_position|no_cuda|use_cpu|gradient_checkpointing_kwargs"
    r"|lr_scheduler_kwargs|corda_config|eva_config|lora_bias|exclude_modules|trainable_token_indices|use_dora|use_rslora"
    r"|layer_replication|megatron_core|target_parameters|attn_implementation|torch_dtype|dtype"
)
"""Options that came or went with a release of transformers, accelerate, peft or trl."""

RULES: tuple[Rule, ...] = (
    # -- what the command line, the launcher and the container say before Python runs
    config(
        "usage",
        r"^(?:argparse\.|click\.|absl\.|hydra\.|omegaconf\.|jsonargparse)|ConfigAttributeError|ConfigKeyError"
        r"|ConfigCompositionException|MissingMandatoryValue",
        unless=r"Error in call to target",
    ),
    env(
        "container-driver",
        (
            r"^ContainerError: (?s:.{0,1500})(?:nvidia-container-cli|hooks\.d|mkdir|seccomp|device driver|"
            r"unsatisfied condition)"
        ),
    ),
    config("container-option", r"^ContainerError: (?s:.{0,600})(?:mount|argument|option|workdir|chdir)"),
    asset("container-image", r"^ContainerError: "),
    env("command", r"^(?:ShellError|SharedLibraryError): "),
    config("script-path", r"can't open file|can't find '__main__'"),
    # -- environment: shared memory, limits, hardware and drivers
    env("shared-memory", r"(?i:shared memory\(shm\)|/dev/shm|shared memory (?:segment|object)|out of shared memory)"),
    env(
        "limits",
        r"Too many open files|received 0 items of ancdata|can't start new thread"
        r"|Resource temporarily unavailable",
    ),
    env("display", r"\bon X server\b|cannot connect to X server"),
    config(
        "device-count",
        r"invalid device ordinal|Duplicate GPU detected|requires? \d+ GPUs|visible devices\(\d+\) is less",
    ),
    env(
        "device-code",
        r"no kernel image|not compiled with CUDA|driver version is insufficient|driver on your system"
        r"|No CUDA GPUs|no CUDA-capable|[Ff]ound no NVIDIA driver"
        r"|unsupported display driver|system not yet initialized|forward compatibility|only supports Ampere"
        r"|machine only has: \[\]|is_available\(\)(?: is|:) False|Invalid\s+CUDA\s+'device="
        r"|CUDA unknown error|unsupported toolchain|version mismatch.{0,80}(?:CUDA|driver)",
    ),
    env(
        "device-missing",
        r"^(?:Assertion|Runtime|Value|Environment|OS)Error\b|^Exception\b",
        place=r"(?:assert|if not) torch\.(?:cuda|npu|xpu)\.is_available\(\)",
    ),
    env(
        "cuda-build",
        r"CUDA Setup failed|CUDA_HOME|Error building extension|[Nn]inja is required|nvcc|PTXAS|ptxas"
        r"|CUDAMismatch|CUDA version .{0,60}(?:mismatch|does not match)|JIT load|Failed to find C compiler"
        r"|libdevice|nvrtc: error|^RuntimeError: #ifdef __HIPCC__"
        r"|Command '\['(?:[\w/.-]{1,80}/)?(?:gcc|g\+\+|cc|c\+\+|clang|x86_64[\w-]{1,40})'"
        r"|compiled with a different CUDA|detected CUDA version",
    ),
    env(
        "service-or-network",
        r"(?:localhost|127\.0\.0\.1).{0,400}(?:refused|Max retries)|TCP receive error"
        r"|DataLoader worker \(pid.{0,30}\) is killed by signal",
    ),
    env("hardware", r"uncorrectable ECC|NVLink error|GPU is lost|fallen off the bus"),
    data(
        "label-range",
        r"device-side assert|Target \d+ is out of bounds|index out of range in self|IndexError: Target"
        r"|outside the valid range of \[|Class values must be smaller|label_ids"
        r"|labels? (?:must be|out of range|should be)",
    ),
    env("library-start", r"_STATUS_(?:NOT_INITIALIZED|ARCH_MISMATCH|VERSION_MISMATCH|NOT_SUPPORTED)"),
    code("cuda-access", r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|HIP error"),
    # -- environment: packages and versions
    code("circular-import", r"circular import"),
    env(
        "module-missing",
        r"ModuleNotFoundError|No module named|DistributionNotFound|PackageNotFoundError|No package metadata"
        r"|VersionConflict|ContextualVersionConflict",
    ),
    code(
        "own-name-missing",
        r"cannot import name .{1,200} from .{1,200} \((?!.{0,300}(?:site-packages|dist-packages))[~/.]",
    ),
    env("import", r"\bImportError\b", unless=r"backend tokenizer|Cannot handle|Repo id"),
    env(
        "library-file",
        r"cannot open shared object|undefined symbol|GLIBC|GLIBCXX|DLL load failed|libcud\w*\.so"
        r"|failed to map segment|symbol lookup error|Library not loaded|symbol \S{1,120} version .{1,80} not defined"
        r"|WinError 1455|paging file is too small",
    ),
    env(
        "binary-mismatch",
        r"numpy\.dtype size changed|compiled using NumPy|numpy\.core\.multiarray failed"
        r"|operator torchvision::nms|Couldn't load custom C\+\+ ops|binary incompatib|_ARRAY_API"
        r"|Descriptors can ?not (?:not )?be created directly|working triton installation",
    ),
    env(
        "package-required",
        r"pip install|isn't installed|is not installed|to be installed|[Pp]lease (?:install|upgrade|update)"
        r"|FlashAttention\d? has been toggled on|flash[-_]attn|doesn't seem to be installed"
        r"|requires? (?:the )?[`\w.\[\]' -]{1,60} (?:library|package)|(?:>=|<=|==|>|<) ?\d[\w.]* (?:is"
        r"|are) required|is required for (?:a|the) normal|requires? .{0,80}(?:>=|<=|==) ?v?\d"
        r"|need to (?:install|upgrade)|was not found in your environment|version .{0,40}(?:too old"
        r"|not supported|or (?:newer|later|higher))|minimum (?:required )?version"
        r"|Your setup doesn't support bf16",
        unless=r"backend tokenizer|not a local folder|Cannot handle|Repo id",
    ),
    env(
        "architecture-unknown",
        r"does not recognize this architecture|is not currently imported|does not exist or is not currently"
        r"|Unrecognized configuration class|untagged enum|rope_scaling|Unknown quantization type"
        r"|does not support Flash Attention|does not support an attention implementation|weights_only"
        r"|Weights only load failed|Model architectures .{1,200} (?:are|is) not supported",
    ),
    env("architecture-key", r"^KeyError: '[\w-]{2,40}'", place=r"configuration_auto\.py"),
    env(
        "attribute-of-package",
        r"AttributeError: module '(?:numpy|np|torch|transformers|datasets|tensorflow|tf|jax|keras|PIL|pandas"
        r"|triton|flash_attn|accelerate|peft|trl|deepspeed|torchvision|torchaudio|collections|inspect|pkgutil"
        r"|distutils|paddle|mxnet|scipy|sklearn|cv2)\b"
        r"|Can't get attribute '\w+' on <module '[\w.]+' from .{1,200}(?:site|dist)-packages"
        r"|'(?:Accelerator\w{0,8}|DynamicCache|TrainingArguments|\w{0,30}Tokenizer(?:Fast)?)' object has no attribute",
    ),
    env(
        "argument-of-a-release",  # options that one release has and another has not, wherever they are passed
        rf"got an unexpected keyword argument '(?:{OF_A_RELEASE})'",
    ),
    config(
        "option-of-a-class",  # what is read from a configuration is handed to it whole: a misspelled option
        rf"TypeError: {OPTIONS}\.\w+\(\) got an unexpected keyword argument",
    ),
    config(
        "option-of-a-class-unnamed",  # Python before 3.10 does not name the class
        r"TypeError: __init__\(\) got an unexpected keyword argument",
        place=rf"\b{OPTIONS}\(",
    ),
    env("argument-of-package", rf"TypeError: {PACKAGE_CALL}\.\w+\(\) got an unexpected keyword argument"),
    env("credentials", r"api_key not configured|[Aa]uthentication token|wandb\.(?:errors|sdk)|host='api\.wandb\.ai'"),
    env("encoding", r"UnicodeEncodeError|locale\.Error"),
    env("permission", r"PermissionError|\[Errno 13\]|Permission denied"),
)
