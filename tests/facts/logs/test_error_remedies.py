"""What an error says to do: the action that its message and its frames show, with its names."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from trackside.show.document import document

LIBRARY = "/opt/env/lib/python3.11/site-packages"


def first_action(tmp_path: Path, error: str, *frames: str) -> tuple[str, str | None]:
    """Sentence and command for an error; the frames are ``file, function``."""
    lines = ["Traceback (most recent call last):"]
    for number, frame in enumerate(("/home/ana/train.py, main", *frames), 7):
        file, _, function = frame.partition(", ")
        lines.append(f'  File "{file}", line {number}, in {function}')
    log = tmp_path / "train.log"
    log.write_text("\n".join([*lines, error]) + "\n")
    action = document(trackside.diagnose(log)).actions[0]
    return action.text, action.command


TORCH_SAVE = tuple(f"{LIBRARY}/torch/serialization.py, {name}" for name in ("save", "_open_file_like", "__init__"))
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: "
STATE_DICT = "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "


@pytest.mark.parametrize(
    ("error", "frames", "text", "command"),
    [
        (NO_FILE + "'/w/out/m.pth'", TORCH_SAVE, "Create /w/out, writable for the job, and resubmit", "mkdir -p /w/out"),
        (NO_FILE + "'/w/out/m.pth'", (), "Check that /w/out/m.pth exists", None),
        (NO_FILE + "'logs/a.log'", (f"{LIBRARY[:-13]}logging/__init__.py, _open",), "Create logs, relative to", "mkdir -p logs"),
        ("RuntimeError: Parent directory /w/out does not exist.", (), "Create /w/out, writable", "mkdir -p /w/out"),
        ("OSError: Cannot save file into a non-existent directory: 'my result'", (), "Create my result, ", "mkdir -p 'my result'"),
        ("AssertionError: Torch not compiled with CUDA enabled", (), "The installed PyTorch is built without CUDA", "python -c 'import torch; print(torch.version.cuda)'"),
        (
            "RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.",
            (f"{LIBRARY}/torch/nn/modules/batchnorm.py, forward",),
            "SyncBatchNorm needs a process group",
            None,
        ),
        (
            "ImportError: cannot import name 'grid' from 'torch._inductor.kernel' (/opt/env/site-packages/torch/a.py)",
            (f"{LIBRARY}/torch/_inductor/conv.py, <module>",),
            "The installed torch has no grid in torch._inductor.kernel: reinstall torch and triton",
            None,
        ),
        (
            f"ImportError: cannot import name 'Cache' from 'transformers' ({LIBRARY}/transformers/__init__.py)",
            (f"{LIBRARY}/peft/peft_model.py, <module>",),
            "The installed transformers has no Cache in transformers, which peft imports: install versions of peft and",
            None,
        ),
        (
            STATE_DICT + '"a.weight", "a.bias". \n\tUnexpected key(s) in state_dict: "epoch", "model_state_dict". ',
            (),
            "The checkpoint holds more than the weights: load its entry 'model_state_dict' at train.py:7",
            None,
        ),
        (
            STATE_DICT + '"a.weight". \n\tUnexpected key(s) in state_dict: "module.a.weight". ',
            (),
            "Names in the checkpoint begin with 'module.'",
            None,
        ),
    ],
)  # fmt: skip
def test_an_error_names_what_to_do(
    tmp_path: Path, error: str, frames: tuple[str, ...], text: str, command: str | None
) -> None:
    shown, shown_command = first_action(tmp_path, error, *frames)
    assert shown.startswith(text)
    assert shown_command == command
