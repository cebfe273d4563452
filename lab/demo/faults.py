"""The faults of the demonstration, each a small declaration.

What a verdict should say is set by what was injected. All jobs train `lab/train/pretrain.py`, a real loop with gloo.
"""

from __future__ import annotations

import signal

from lab.demo.fault import DemoFault, ExpectedVerdict, cancel, kill_node, preempt, requeue, signal_rank

RANKS = (
    "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT\n"
    "srun -l bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec python pretrain.py {}'\n"
)
TORCHRUN = "torchrun --standalone --nproc-per-node 2 pretrain.py {}"
TWO_NODES = ("-N2", "--ntasks-per-node=1")
TWO_GPUS = ("--gpus-per-node=2",)
LONG = "--steps 9000 --lr 1e-3 --pause 0.1"
SAVES = "--lr 1e-3 --pause 0.1 --save-to last.pt --save-every 50 --resume last.pt"

FAULTS = (
    DemoFault(
        name="hang",
        story="One rank reads a pipe that nobody writes to and enters no more collectives; canceled a minute later.",
        script="mkfifo data/fresh.jsonl\n" + RANKS.format(LONG + " --refresh-shard data/fresh.jsonl@150:1"),
        options=TWO_NODES,
        inject=cancel("step 150 ", 60),
        state="CANCELLED",
        expected=ExpectedVerdict("C2", culprit="job", ranks=(1,), nodes=(2,), shows="tinylm.py:41 in Windows.__init__"),
    ),
    DemoFault(
        name="timeout-hung",
        story="One rank is frozen (SIGSTOP); the other waits for it until the limit of two minutes, which leaves the agent time for the stacks.",
        script=RANKS.format(LONG),
        options=(*TWO_NODES, "--time=2"),
        inject=signal_rank(1, signal.SIGSTOP, "step 100 "),
        state="TIMEOUT",
        expected=ExpectedVerdict("C2", ranks=(1,), nodes=(2,)),
    ),
    DemoFault(
        name="timeout",
        story="The time limit is too short: training made progress until the end.",
        script=TORCHRUN.format("--steps 20000 --lr 3e-4 --pause 0.2"),
        options=(*TWO_GPUS, "--time=1"),
        state="TIMEOUT",
        expected=ExpectedVerdict("F3", variant="slow"),
    ),
    DemoFault(
        name="node-killed",
        story="A node dies while the job runs on it.",
        script=RANKS.format(LONG),
        options=(*TWO_NODES, "--no-requeue"),
        nodes="34",
        inject=kill_node("step 60 ", 4),
        state="NODE_FAIL",
        expected=ExpectedVerdict("F1", culprit="infrastructure", nodes=(4,)),
    ),
    DemoFault(
        name="preempted",
        story="A job of a higher partition takes its GPUs; it is requeued, resumes and completes.",
        script=f"python pretrain.py --steps 250 {SAVES}",
        options=("-p", "low", "--gpus-per-node=6", "--open-mode=append", "--requeue"),
        nodes="3",
        inject=preempt("step 120 ", 3, 6),
        state="COMPLETED",
        expected=ExpectedVerdict("F2", culprit="scheduler"),
    ),
    DemoFault(
        name="requeued",
        story="An administrator requeues it; it resumes and completes.",
        script=f"python pretrain.py --steps 250 {SAVES}",
        options=("--open-mode=append", "--requeue"),
        inject=requeue("step 120 "),
        state="COMPLETED",
        expected=ExpectedVerdict("F2", culprit="unknown"),
    ),
    DemoFault(
        name="crash",
        story="The loop uses a column that the data lacks: each of four ranks raises before its first step.",
        script=RANKS.format("--steps 200 --column content"),
        options=("-N2", "--ntasks-per-node=2", *TWO_GPUS),
        state="FAILED",
        expected=ExpectedVerdict("A1", culprit="job", ranks=(0, 1, 2, 3), shows="KeyError: 'content'"),
    ),
    DemoFault(
        name="killed",
        story="One rank gets SIGKILL from outside during training.",
        script=RANKS.format(LONG),
        options=TWO_NODES,
        inject=signal_rank(1, signal.SIGKILL, "step 60 "),
        state="FAILED",
        expected=ExpectedVerdict("A2", ranks=(1,), nodes=(2,), never=("its own memory limit", "that it requested")),
    ),
    DemoFault(
        name="out-of-memory",
        story="A rank fills host memory beyond the job's limit; the cgroup's oom-kill ends it.",
        script="sed -i 's/^from native/CACHE = [bytearray(1 << 20) for _ in range(3000)]\\nfrom native/' pretrain.py\n"
        "python pretrain.py --steps 200",
        options=("--mem=600",),
        state="OUT_OF_MEMORY",
        expected=ExpectedVerdict("A2", culprit="job", shows="OOM kills among the job's processes"),
    ),
    DemoFault(
        name="rendezvous",
        story="torchrun waits for a second node whose launcher is never started.",
        script="srun -N1 -n1 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id 7301 "
        "--rdzv-endpoint 127.0.0.1:$PORT --rdzv-conf join_timeout=20,timeout=20 pretrain.py --steps 100",
        options=("-N2", "--ntasks-per-node=1", *TWO_GPUS),
        state="FAILED",
        expected=ExpectedVerdict("C1"),
    ),
    DemoFault(
        name="diverged",
        story="A learning rate far too high: the loss is nan within some steps, and the job completes.",
        script=TORCHRUN.format("--steps 200 --optimizer sgd --lr 3e3 --every 5 --pause 0.05"),
        options=TWO_GPUS,
        state="COMPLETED",
        expected=ExpectedVerdict("E1", variant="non-finite", culprit="job"),
    ),
    DemoFault(
        name="silent-resume",
        story="The second job of a chain looks for its checkpoint where the first did not write it.",
        script="python pretrain.py --lr 1e-3 --every 5 --pause 0.05 --steps 160 --resume runs/run1/last.pt",
        parent="mkdir -p run1\npython pretrain.py --lr 1e-3 --every 5 --pause 0.05 --steps 80 --save-to run1/last.pt",
        state="COMPLETED",
        expected=ExpectedVerdict("E2", variant="silent", culprit="job"),
    ),
    DemoFault(
        name="undertrained",
        story="Three steps, and it completes.",
        script=TORCHRUN.format("--steps 3 --every 1 --lr 1e-3"),
        options=TWO_GPUS,
        state="COMPLETED",
        expected=ExpectedVerdict("E3", culprit="job"),
    ),
    DemoFault(
        name="cancelled",
        story="A healthy job that its user cancels: it resembles a hang that is canceled.",
        script=TORCHRUN.format(LONG),
        options=TWO_GPUS,
        inject=cancel("step 100 "),
        state="CANCELLED",
        expected=ExpectedVerdict("H1", culprit="none"),
    ),
    DemoFault(
        name="healthy",
        story="No fault.",
        script=RANKS.format("--steps 600 --lr 1e-3 --pause 0.05"),
        options=TWO_NODES,
        state="COMPLETED",
        expected=ExpectedVerdict("G1", culprit="none"),
    ),
)
