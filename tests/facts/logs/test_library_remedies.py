"""What to do about a library or a package that is missing: its name, and the Python of the job to check it with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trackside
from trackside.show.document import document

UNDEFINED = ".cpython-39-x86_64-linux-gnu.so: undefined symbol: _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv"
CONDA = "/opt/conda/envs/job/lib/python3.9/site-packages"
DEBIAN = "/usr/local/lib/python3.10/dist-packages"


def first_action(tmp_path: Path, error: str, *files: str) -> tuple[str, str]:
    """Sentence and command of the first action, for an error that was raised in the last of the files."""
    frames = (f'  File "{file}", line 7, in load\n' for file in ("/home/ana/train.py", *files))
    log = tmp_path / "train.log"
    log.write_text(f"Traceback (most recent call last):\n{''.join(frames)}{error}\n")
    action = document(trackside.diagnose(log)).actions[0]
    return action.text, str(action.command)


@pytest.mark.parametrize(
    ("error", "files", "text", "command"),
    [
        (
            f"ImportError: {CONDA}/flash_attn_2_cuda{UNDEFINED}",
            (f"{CONDA}/transformers/models.py", f"{CONDA}/flash_attn/__init__.py"),
            "flash-attn, which loads flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so, does not fit the installed "
            "PyTorch: reinstall flash-attn, so that it is built for what is installed; then check that it loads, and "
            "resubmit",
            "/opt/conda/envs/job/bin/python3 -m pip install --force-reinstall --no-deps --no-cache-dir "
            "--no-build-isolation flash-attn && /opt/conda/envs/job/bin/python3 -c 'import torch, flash_attn_2_cuda'",
        ),
        (
            f"ImportError: {CONDA}/sklearn/_tree.cpython-39-x86_64-linux-gnu.so: undefined symbol: PyFloat_Unpack",
            (),
            "scikit-learn, which loads _tree.cpython-39-x86_64-linux-gnu.so, does not fit the installed packages: "
            "reinstall scikit-learn, so that it is built for what is installed; then check that it loads, and resubmit",
            "python -m pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation scikit-learn",
        ),
        (
            f"ImportError: {CONDA}/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
            (f"{CONDA}/torch/__init__.py",),
            "libtorch_cpu.so does not fit the other libraries that the job loads: unset LD_LIBRARY_PATH in the job, or "
            "reinstall torch with the NVIDIA packages that it requires; then check it, and resubmit",
            "env -u LD_LIBRARY_PATH /opt/conda/envs/job/bin/python3 -c 'import torch'",
        ),
        (
            "ImportError: libtorch_cuda_cu.so: cannot open shared object file: No such file or directory",
            (),
            "libtorch_cuda_cu.so is part of other builds of PyTorch than the installed one: reinstall the package that "
            "loads it, built for the installed PyTorch, and resubmit",
            "None",
        ),
        (
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
            (),
            "libcuda.so.1 is part of the NVIDIA driver: run on a node that has the driver, or pass it to the container "
            "(--nv, --gpus all); then check it, and resubmit",
            """python -c 'import ctypes; ctypes.CDLL("libcuda.so.1")'""",
        ),
        (
            "ModuleNotFoundError: No module named 'triton'",
            (f"{DEBIAN}/unsloth/models.py",),
            "Install triton in the job's environment; then check it, and resubmit",
            "python3.10 -m pip install triton && python3.10 -c 'import triton'",
        ),
        (
            "ModuleNotFoundError: No module named 'triton'",
            ("/usr/lib/python3.8/runpy.py", "/home/ana/venv/lib/python3.8/site-packages/unsloth/models.py"),
            "Install triton in the job's environment; then check it, and resubmit",
            "/home/ana/venv/bin/python3 -m pip install triton && /home/ana/venv/bin/python3 -c 'import triton'",
        ),
        (
            "ModuleNotFoundError: No module named 'triton'",
            ("/usr/lib/python3.8/runpy.py", "/home/ana/.local/lib/python3.8/site-packages/unsloth/models.py"),
            "Install triton in the job's environment; then check it, and resubmit",
            "python3.8 -m pip install triton && python3.8 -c 'import triton'",
        ),
        (
            "ImportError: No module named triton",
            ("/usr/local/lib/python2.7/site-packages/keras/models.py",),
            "Install triton in the job's environment; then check it, and resubmit",
            "/usr/local/bin/python2.7 -m pip install triton && /usr/local/bin/python2.7 -c 'import triton'",
        ),
    ],
)
def test_a_remedy_names_package_and_python(
    tmp_path: Path, error: str, files: tuple[str, ...], text: str, command: str
) -> None:
    assert first_action(tmp_path, error, *files) == (text, command)


def test_the_check_of_a_library_looks_where_the_loader_looks(tmp_path: Path) -> None:
    """It fails for the missing library and succeeds for one that is there."""
    error = "OSError: {}: cannot open shared object file: No such file or directory"
    for library, is_there in (("libtrackside-none.so", False), ("libc.so.6", True)):
        _, command = first_action(tmp_path, error.format(library))
        check = subprocess.run(command.replace("python", sys.executable, 1), shell=True, capture_output=True)
        assert (check.returncode == 0) is is_there
