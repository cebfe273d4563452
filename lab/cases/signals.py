"""A2: a process ends by a signal, with no Python traceback of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from lab.case import LabCase
from lab.plays import run, signal_program, signal_rank, signal_worker
from lab.points import NANOGPT, PLAIN, Reader
from lab.stage import RunFailed, Stage

TORCHRUN = "torchrun --standalone --nproc-per-node"
MEMORY = Path("/sys/fs/cgroup/memory")


def sigkill_midrun(stage: Stage) -> None:
    """The ranks' output goes to files of their own, so rank 0's file is watched."""
    script = f"{TORCHRUN} 2 --log-dir logs --redirects 3 pretrain.py --steps 900 --pause 0.05"
    running = stage.start(script + " --lr 1e-3")
    try:
        running.wait_for_file("logs/**/0/stdout.log", "step 50 ")
        os.kill(running.rank_pid(1), signal.SIGKILL)
        running.finish()
    finally:
        running.stop()
    stage.keep_glob("logs/**/*.log")


def within_memory_limit(stage: Stage) -> None:
    """Run in a memory cgroup (v1) of 400 MiB, and keep what the kernel counted."""
    group = MEMORY / f"train_{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
    except OSError as error:
        raise RunFailed(f"no memory cgroup to be had: {error}") from error
    loader = "from pathlib import Path\n\ncache = [\n"
    loader += "    bytearray(1 << 20) for _ in Path('data/train.jsonl').read_text().split() * 2\n]\n"
    (stage.work / "cache.py").write_text(loader)
    script = "sed -i 's/^from native/import cache  # noqa\\nfrom native/' pretrain.py\n"
    script += f"echo $$ > {group}/cgroup.procs\necho preparing the token cache\n"
    script += "python pretrain.py --steps 100\necho exit status $?"
    running = stage.start(script)
    try:
        running.finish()
        counted = stage.work / "memory.oom_control"
        counted.write_text((group / "memory.oom_control").read_text())
        stage.keep(counted)
    finally:
        running.stop()
        group.rmdir()


CASES = (
    LabCase(
        name="sigkill-startup-4-ranks",
        play=run(
            f"{TORCHRUN} 4 pretrain.py --steps 100 --pause 4",
            inject=signal_rank(2, signal.SIGKILL, "starting training"),
        ),
        expected={"family": "A2", "accept": ["H3"], "signal": "SIGKILL", "ranks": [2]},
        story="A custom DDP loop under torchrun, 4 ranks.\n"
        "Injected: SIGKILL to rank 2 from outside, before the first step.\n"
        "Other ranks may print a gloo error as the peer goes away: a consequence.",
        marks=(r"Signal 9 \(SIGKILL\)",),
        no_progress=True,
    ),
    LabCase(
        name="sigkill-midrun",
        play=sigkill_midrun,
        expected={"family": "A2", "accept": ["H3"], "signal": "SIGKILL", "ranks": [1]},
        story="A custom DDP loop under torchrun, 2 ranks, output only in the --log-dir tree.\n"
        "Injected: SIGKILL to rank 1 from outside after step 50; it leaves no word in its log.\n"
        "Rank 0 raises a gloo connection error as its peer goes: a consequence.",
        marks=(r"Signal 9 \(SIGKILL\)",),
        reader=Reader(PLAIN, files="stdout.log"),
    ),
    LabCase(
        name="segv-midrun",
        play=run(f"{TORCHRUN} 2 pretrain.py --steps 100 --lr 1e-3 --native-op segv@57:1"),
        expected={"family": "A2", "culprit": "job", "signal": "SIGSEGV", "ranks": [1]},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: native code of rank 1 reads address 0 after step 57.\n"
        "Rank 0 prints a traceback with a gloo connection error: it lost its peer.",
        marks=(r"Signal 11 \(SIGSEGV\)",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="segv-single-bash",
        play=run(
            "python -X faulthandler pretrain.py --style nanogpt --steps 100 --lr 1e-3 "
            "--native-op segv@33:0\necho exit status $?",
        ),
        expected={"family": "A2", "culprit": "job", "signal": "SIGSEGV"},
        story="A custom loop under plain python in a bash script.\n"
        "Injected: native code reads address 0 after step 33; bash says so, no launcher.\n"
        "faulthandler's `Fatal Python error` with a stack is not a Python exception.",
        marks=("Segmentation fault", "exit status 139"),
        reader=Reader(NANOGPT),
    ),
    LabCase(
        name="abort-double-free",
        play=run(f"{TORCHRUN} 2 pretrain.py --steps 100 --lr 1e-3 --native-op abrt@0:0"),
        expected={"family": "A2", "culprit": "job", "signal": "SIGABRT", "ranks": [0]},
        story="A custom DDP loop under torchrun, 2 ranks.\n"
        "Injected: native code of rank 0 frees a block twice before the first step; libc aborts.\n"
        "libc's own line (`free(): double free ...`) is the only cause that is printed.",
        marks=(r"Signal 6 \(SIGABRT\)", "double free"),
        no_progress=True,
    ),
    LabCase(
        name="bus-error",
        play=run("python pretrain.py --steps 100 --lr 1e-3 --native-op bus@20:0\necho exit status $?"),
        expected={"family": "A2", "signal": "SIGBUS"},
        story="A custom loop under plain python in a bash script.\n"
        "Injected: a mapped file is cut short and touched after step 20 (SIGBUS, status 135).",
        marks=("Bus error", "exit status 135"),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="killed-single-bash",
        play=run(
            "python pretrain.py --steps 400 --lr 1e-3 --pause 0.05\necho exit status $?",
            inject=signal_program("pretrain.py", signal.SIGKILL, "step 30 "),
        ),
        expected={"family": "A2", "accept": ["H3"], "signal": "SIGKILL"},
        story="A custom loop under plain python in a bash script.\n"
        "Injected: SIGKILL from outside after step 30; bash prints `Killed`.\n"
        "Nothing tells whether memory or a person did it.",
        marks=(" Killed ", "exit status 137"),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="loader-worker-killed",
        play=run(
            "python pretrain.py --steps 400 --lr 1e-3 --pause 0.05 --workers 2",
            inject=signal_worker("pretrain.py", signal.SIGKILL, "step 20 "),
        ),
        expected={
            "family": "A2",
            "accept": ["H2", "H3"],
            "signal": "SIGKILL",
            "exception": "RuntimeError",
        },
        story="A custom loop under plain python with two data loader workers.\n"
        "Injected: SIGKILL to one worker after step 20.\n"
        "The main process raises RuntimeError naming the worker and the signal: the traceback\n"
        "is the messenger, the killed worker the cause.",
        marks=("DataLoader worker",),
        reader=Reader(PLAIN),
    ),
    LabCase(
        name="host-oom-cgroup",
        play=within_memory_limit,
        expected={"family": "A2", "culprit": "job", "signal": "SIGKILL"},
        story="A custom loop under plain python within a memory cgroup of 400 MiB.\n"
        "Injected: the loop fills a cache in host memory; the kernel kills it.\n"
        "memory.oom_control (cgroup v1) counts the kill; MemoryError is never raised.",
        marks=("Killed", "exit status 137", "oom_kill [1-9]"),
        no_progress=True,
    ),
)
