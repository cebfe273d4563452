"""Redacts teams, projects and repositories in contexts of experiment trackers and code or model hubs, and buckets.

A name that is a common word (``llm``, ``test``) is replaced only in such contexts. Names of well-known publishers and
public models are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trackside.bundle.redact.literal import PrefixedKind
from trackside.bundle.redact.prefilter import Detector, detector

_NAME = r"([A-Za-z0-9][\w.-]{0,99})"
_PAINT = r"(?:\x1b\[[0-9;]{0,9}m)?"
_SITE = r"(?:wandb\.ai/|wandb\.[\w.-]{1,60}/|(?:www\.)?comet\.(?:com|ml)/|neptune\.ai/(?:o/)?)"
_HUB = r"(?:huggingface\.co/|hf\.co/)(?:datasets/|spaces/|api/(?:models|datasets|spaces)/|org/)?"
_CODE = r"(?:github\.com|gitlab\.com|bitbucket\.org)[/:]"
_LINK = r"(?:[\w.-]{1,100}/){0,2}(?:issues|pull|blob|tree|releases|wiki|discussions|commit|archive|raw)\b"
"""Path of a link to a web page, as in error messages; a cloned repository has none."""
_IS = r"(?:\\?[\"'])?[ \t]{0,8}[:=][ \t]{0,8}(?:\\?[\"'])?"
_OWNERS = (
    rf"(logged in as:? {_PAINT}[\w.@-]{{1,80}}{_PAINT} \({_PAINT}){_NAME}(?={_PAINT}\))",
    rf"({_SITE}){_NAME}",
    rf"({_HUB}){_NAME}",
    rf"({_CODE}){_NAME}(?=/(?!{_LINK}))",
    rf"((?:WANDB_ENTITY|COMET_WORKSPACE|wandb_entity|wandb_team|entity|workspace_name|hub_organization){_IS}){_NAME}",
    rf"(--(?:wandb[._-])?(?:entity|workspace|hub[_-]organization)[ \t]{{1,4}}[\"']?){_NAME}",
    rf"(NEPTUNE_PROJECT{_IS}){_NAME}(?=/)",
    r"(://)(?!api|docs|www)([\w-]{2,60})(?=\.wandb\.(?:io|ai))",
)
_PROJECTS = (
    rf"({_SITE}[\w.-]{{1,100}}/){_NAME}",
    rf"({_HUB}[\w.-]{{1,100}}/){_NAME}",
    rf"({_CODE}(?!{_LINK})[\w.-]{{1,100}}/){_NAME}",
    r"((?:WANDB_PROJECT|COMET_PROJECT_NAME|COMET_PROJECT|MLFLOW_EXPERIMENT_NAME|CLEARML_PROJECT|GOOGLE_CLOUD_PROJECT"
    r"|wandb_project|wandb_project_name|comet_project|project_name|hub_model_id|hub_repo_id|project_id|projectId)"
    rf"{_IS}(?:[\w.-]{{1,100}}/)?){_NAME}",
    rf"(NEPTUNE_PROJECT{_IS}[\w.-]{{1,100}}/){_NAME}",
    rf"(--(?:wandb|comet|mlflow|hub|clearml|neptune)[._-](?:project|model[_-]id|experiment)(?:[_-]?name)?"
    rf"(?:[ \t]{{1,4}}|=)[\"']?"
    rf"(?:[\w.-]{{1,100}}/)?){_NAME}",
    r"(Experiment with name ')([^'\n]{1,100})(?=')",
)
_BUCKETS = (
    r"((?:s3[an]?|gs|gcs|az|abfss?|wasbs?|oss|cos|r2|obs)://)([A-Za-z0-9][\w.-]{1,100})",
    r"(https?://)([a-z0-9][\w-]{1,100})"
    r"(?=\.s3[.-][\w.-]{0,40}amazonaws\.com|\.(?:blob|dfs|file|queue)\.core\.windows\.net)",
    r"(@)([a-z0-9]{2,60})(?=\.(?:blob|dfs)\.core\.windows\.net)",
    r"(\.core\.windows\.net/|//s3[\w.-]{0,40}\.amazonaws\.com/|storage\.googleapis\.com/|arn:aws:s3:::)"
    r"([A-Za-z0-9][\w.-]{1,100})",
    r"(\b(?:AccountName|AZURE_STORAGE_ACCOUNT|S3_BUCKET|GCS_BUCKET|BUCKET_NAME|BUCKET|bucket_name|bucket)"
    r"(?:\\?[\"'])?[ \t]?[:=][ \t]?(?:\\?[\"'])?)([A-Za-z][\w.-]{2,100})",
)
_PUBLIC = frozenset(
    """
01-ai allenai anthropic apache apple baidu bigcode bigscience bigscience-workshop cohere databricks dao-ailab deepmind
deepseek-ai deepspeedai distilbert eleutherai facebook facebookresearch google google-bert google-deepmind
google-research googlecloudplatform hazyresearch hpcaitech hugging-face huggingface huggingfacefw ibm ibm-granite
intel jax-ml karpathy keras-team lightning-ai lmsys meta meta-llama microsoft mistralai mlcommons mlperf mosaicml
nvidia nvidia-nemo open-mmlab openai openai-community pytorch pytorchlightning qwen ray-project roberta
rom1504 salesforce sentence-transformers slurm stabilityai stanford tensorflow tiiuae tloen togethercomputer tqdm
unsloth volcengine wandb xai-org zai-org
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Well-known publishers."""
_PAGES = frozenset(
    """
about api api-inference app authorize blob blog chat collections community contact docs enterprise forum help home
inference issues join legal login logout main metrics models new notifications o organizations papers posts pricing
profile pulls quickstart raw releases resolve runs security settings signup site spaces sponsors status support tasks
terms topics tree wiki workspace
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""General pages of such services."""
_MODELS = re.compile(
    r"(?i)(?:distil|al|ro|de|x)?(?:bert|gpt-?2|t5|xlm|xlnet|opt|vit|llama|bart|whisper|clip|electra|longformer)"
    r"(?:[-_.](?:\w+))*"
)
_DEFAULT = frozenset(
    {"huggingface", "uncategorized", "lightning_logs", "lightning-logs", "none", "null", "true", "false"}
)
_WORDS = frozenset(
    """
ai artifacts audio backup base bucket checkpoint checkpoints ckpt code data dataset datasets default demo dev eval
experiment experiments finetune fine-tuning fine_tuning finetuning gpt jobs llama llm log logs lm main megatron ml
model models nemo output outputs personal pretrain pretraining prod project public research results run runs sandbox
scratch sft shared staging storage team temp test testing tmp tokens train training user users vision work workspace
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words common in logs."""


class _HostedKind(PrefixedKind):
    """Base class. ``patterns``: two groups each, prefix and original."""

    patterns: Sequence[str] = ()
    max_ambiguous_length = 3
    """Names of up to this length are too ambiguous to replace everywhere."""

    @property
    def detectors(self) -> Sequence[Detector]:
        return [detector(re.compile(pattern, re.ASCII), self.add_prefixed) for pattern in self.patterns]

    def key(self, text: str) -> str | None:
        """The original; None for public names."""
        text = text.rstrip(".-")
        lower = text.lower()
        if len(text) < 2 or lower in _PUBLIC or lower in _PAGES or lower in _DEFAULT or text.isdecimal():
            return None
        return None if re.fullmatch(rf"(?:{self.word}|word|user|secret)-\d+", text) else text

    def is_rare(self, key: str) -> bool:
        return len(key) > self.max_ambiguous_length and key.lower() not in _WORDS and not _MODELS.fullmatch(key)


class TeamNames(_HostedKind):
    """Teams, organizations and people that own projects and repositories."""

    plural, word, patterns = "teams and owners", "team", _OWNERS

    def add_prefixed(self, match: tuple[str, str]) -> None:
        """Learn an owner, unless it is a public model, whose URL has no owner."""
        if not (match[0].startswith(("huggingface.co/", "hf.co/")) and _MODELS.fullmatch(match[1])):
            super().add_prefixed(match)


class Projects(_HostedKind):
    """Projects and repositories. A single word without a number is too ambiguous to replace everywhere."""

    plural, word, patterns = "projects and repositories", "project", _PROJECTS

    def key(self, text: str) -> str | None:
        """The original without the suffix ``.git``."""
        return super().key(text.removesuffix(".git"))

    def add_prefixed(self, match: tuple[str, str]) -> None:
        """Learn a project, unless its owner, in the prefix, is public."""
        owner = re.search(r"[/:]([\w.-]+)/\Z", match[0])
        if owner is None or (owner[1].lower() not in _PUBLIC and owner[1].lower() not in _PAGES):
            super().add_prefixed(match)

    def is_rare(self, key: str) -> bool:
        return super().is_rare(key) and len(key) >= 8 and not key.isalpha()


class Buckets(_HostedKind):
    """Object store buckets."""

    plural, word, patterns = "buckets", "bucket", _BUCKETS

    def is_rare(self, key: str) -> bool:
        return super().is_rare(key) and len(key) >= 6 and not key.isalpha()
