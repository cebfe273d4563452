"""The job's Python, and the package that has a module or a library, as tracebacks show them."""

from __future__ import annotations

import re

from trackside.evidence import Frame, Value, derived
from trackside.model import Event

_LIBRARIES = re.compile(r"(/[\w./+-]{1,120}?)/lib/(python\d\.\d{1,2})(/(?:site|dist)-packages)?")
"""Folder of a Python's libraries, its version, and whether they are installed packages."""
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(\w+)/")
_SAME_NAMES = """
accelerate albumentations bitsandbytes causal_conv1d datasets deepspeed diffusers easydict einops evaluate
fire h5py imageio ipdb joblib jsonlines kornia librosa lightning lmdb loguru lpips mamba_ssm matplotlib
monai mpi4py networkx nltk numba numpy omegaconf open3d pandas peft plotly psutil pyarrow pycocotools
pydantic regex requests rouge_score sacrebleu safetensors scipy seaborn sentence_transformers sentencepiece
soundfile spacy tabulate tensorboard tensorboardX tensorflow termcolor tiktoken timm tokenizers torch
torchaudio torchmetrics torchvision tqdm transformers triton trl ujson vllm wandb xformers yacs
"""
"""Modules that pip knows by their own name, with hyphens."""
PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "flash_attn": "flash-attn",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyOpenSSL",
    "PIL": "Pillow",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
    **{name: name.replace("_", "-") for name in _SAME_NAMES.split()},
}
"""Module -> the name under which pip installs it, for modules that training code imports. Other modules may be the
job's own, or have another owner at the package index."""


def interpreter(frame: Frame, message: Value) -> Value:
    """The interpreter to call, by the paths in the job's tracebacks. Only its name (``python3.11``) if they do not show
    its folder: Debian's packages and ``pip install --user`` lie outside of it. ``python`` if no traceback has a path.
    ``message``: that of the error, cited in this case."""
    for row in frame.events:
        frames = str(row.get("frames") or "")
        places = [match.groups() for match in _LIBRARIES.finditer(frames)]
        if not places:
            continue
        installed = {folder: packages for folder, _, packages in places if packages} or {places[0][0]: None}
        folder, packages = next(iter(installed.items()))
        is_environment = "env" in folder or "conda" in folder
        is_only = packages is not None and len({folder for folder, _, _ in places}) == 1
        is_shown = len(installed) == 1 and packages != "/dist-packages" and not folder.endswith("/.local")
        version = places[0][1]
        name = "python3" if version.startswith("python3") else version
        python = f"{folder}/bin/{name}" if is_shown and (is_environment or is_only) else version
        return derived(python, frame.value(row, "frames"))
    return derived("python", message)


def package_of_library(row: Event, path: str) -> str | None:
    """The installed package that has a library, or that could not load it: by the library's folder or name, else by the
    innermost frame of the error, if that shows the load itself; None if nothing shows it."""
    if (match := _INSTALLED.search(path)) is not None:
        return match[1]
    name = path.rpartition("/")[2]
    named = [module for module in PACKAGES if name.startswith((f"{module}_", f"{module}."))]
    if named:
        return max(named, key=len)
    packages = [] if row.get("chain") else _INSTALLED.findall(str(row.get("frame") or ""))
    return packages[-1] if packages else None
