"""Wrong options and wrong combinations of options."""

from __future__ import annotations

from trackside.facts.logs.fault_rules.rule import Rule, config

RULES: tuple[Rule, ...] = (
    config(
        "option",
        r"(?:Hf|Pd)ArgumentParser|[Uu]nrecognized (?:arguments|option|key|config)"
        r"|(?i:unkn?own (?:argument|option|flag"
        r"|config|optimizer|scheduler|model name|dataset name|loss|activation|key)"
        r"|no config(?:uration)? file specified)"
        r"|[Uu]ndefined dataset"
        r"|not allowed with|mutually exclusive"
        r"|[Uu]nexpected key(?!word)|is not in struct|[Ii]nvalid (?:choice|value for|option|override)|extra (?:fields"
        r"|inputs) (?:not|are not) permitted|ValidationError|validation errors?\b|MisconfigurationException"
        r"|ConfigError|ConfigurationError|DeepSpeedConfig|existing deepspeed config",
    ),
    config(
        "choice",
        r"(?:is not a valid|is not one of|must be one of|should be one of"
        r"|[Aa]llowed (?:precision )?values|[Ee]xpected one of|please select one of|[Ss]upported (?:values"
        r"|types|options|precisions)|[Cc]hoose (?:from|one)|valid options|[Ii]nvalid (?:learning rate"
        r"|precision|strategy|batch size|backend|dtype|beta|momentum|weight_decay|lr)\b"
        r"|Precision '.{1,40}' is invalid)",
    ),
    config(
        "adapter",
        r"[Tt]arget modules|PeftModule|target_modules|only the following modules are supported"
        r"|purely quantized|loaded in 8-?bit|not compatible with .{0,40}(?:LoRA|PEFT|quantiz)",
    ),
    config(
        "combination",
        r"requires? the save and eval|requires? .{1,100} (?:to be set|to match|to be enabled|=True|=False)"
        r"|cannot be used (?:with|together|when)|can't be used with|(?:not|in)[ -]?compatible (?:with|options)"
        r"|both .{1,100} (?:set|specified|provided)|only one of|at the same time|conflict"
        r"|not supported (?:with|when|for|in|by)|is not supported|does not support|overwrite_output_dir"
        r"|already exists and is not empty|FileExistsError|trust_remote_code|mixed precision requires"
        r"|[Aa]sking to pad|no padding token|pad_token|chat_template|find_unused_parameters"
        r"|Expected to have finished reduction",
        unless=r"layer|got an unexpected keyword",
    ),
    config(
        "division",
        r"(?i:divisible|not a multiple of|must be a multiple|batch.{0,30}(?:is not equal|not equal to"
        r"|mismatch)|train_batch_size|world[ _]?size|nproc_per_node|num_gpus"
        r"|pipeline[ _-](?:model[ _-])?parallel|tensor[ _-](?:model[ _-])?parallel|micro[ _-]?batch)",
    ),
    config(
        "launch",
        r"MASTER_ADDR|environment variable|KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_\w+|SLURM_\w+"
        r"|CUDA_VISIBLE_DEVICES)'|[Dd]efault process group has not been initialized|Address family",
    ),
    config(
        "yaml",
        r"yaml\.\w|(?:Scanner|Parser|Constructor)Error: .{0,200}(?:mapping|block|yaml)|toml\w*\."
        r"|TOMLDecodeError|configparser",
    ),
    config(
        "length",
        r"(?i:(?:longer|larger) than the (?:maximum|max_length|specified)|exceeds? (?:the )?(?:maximum|max|model"
        r"|context|block)"
        r"|max_(?:seq|model|position)\w*.{0,80}(?:larger|greater|exceed|less)|sequence length .{0,60}(?:larger"
        r"|longer|exceed|greater))",
    ),
)
