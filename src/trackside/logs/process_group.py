"""Startup of the ranks as jobs, frameworks and torch print it: begun, done, and the world size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_WORLD_SIZE = re.compile(r"world[_ -]?size[ =:.'\"]{1,60}(\d{1,7})\b", re.IGNORECASE)
_CODE = re.compile(
    r"^\s*(?:File \"|raise |return |import |from |def |assert |self\.|if |torch\.distributed\.|"
    r"dist\.)|\(\s*$|line \d+, in |Warning:|has not been|deprecated|\bFailed\b|[Ee]rror\b|"
    r"[Tt]imed out"
)
_READY = re.compile(
    r"(?i:(?:process[ _]group|torch[. ]distributed|distributed (?:backend|environment|"
    r"training))[^\n]{0,30}?(?:\b(?:is )?up\b|\b(?:is )?(?:successfully )?(?:initiali[sz]ed|"
    r"ready)\b)|(?:successfully )?initiali[sz]ed (?:the )?(?:process[ _]group|distributed))"
)
_INIT = re.compile(
    r"(?i:\binit(?:iali[sz]ing)?[ _](?:the )?(?:torch )?(?:distributed|process[_ ]groups?)\b|distributed init \(rank)"
)
_LOGGER = re.compile(r"\[[\w./]{1,80}\.py:\d{1,6}:\w{1,60}\]")
_MEMBER = re.compile(r"MEMBER: \d{1,7}/(\d{1,7})")
_NODES = re.compile(r"--(?:nnodes|num[-_]nodes|num[-_]machines)[ =]{1,2}'?(?:\d{1,6}:)?(\d{1,6})\b")
_LOCAL = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]gpus)[ =]{1,2}'?(\d{1,4})\b")
_TOTAL = re.compile(r"--num[-_]processes[ =]{1,2}'?(\d{1,6})\b")
_LAUNCH = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate(?:\.commands)?[ .-]launch|deepspeed|elastic)\b"
)
_STORE = re.compile(r"Completed store-based barrier for key:\s?(\S{1,80}) with (\d{1,7}) nodes")


def _world_size(text: str) -> int | None:
    """The world size that a text names, or None."""
    match = _WORLD_SIZE.search(text) or _MEMBER.search(text)
    return int(match[1]) if match else None


PARSER = Parser("process-group", "process groups", "system")


@PARSER.pattern(
    rb"(Completed store-based barrier for key|: store_based_barrier_key:[0-9]{1,6} to store for "
    rb"rank|Waiting in store based barrier)",
    safety="torch's own words; a barrier that timed out is a failure, which another parser reads.",
    matches=(
        "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 8 nodes.",
        "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: 0",
        (
            "Waiting in store based barrier to initialize process group for rank: 0, key: "
            "store_based_barrier_key:1 (world_size=8, worker_count=4, timeout=0:30:00)"
        ),
    ),
    avoids=("Timed out initializing process group in store based barrier on rank: 1",),
)
def _store_barrier(line: Line) -> Event | None:
    if match := _STORE.search(line.text):
        return line.event("distributed_ready", EventRole.OBSERVATION, world_size=int(match[2]))
    if "to store for rank" in line.text or "Waiting in store based barrier" in line.text:
        return line.event("distributed_init", EventRole.OBSERVATION, world_size=_world_size(line.text))
    return None


@PARSER.pattern(
    rb"(All distributed processes registered|MEMBER: [0-9]{1,7}/[0-9])",
    safety="Lightning's banner.",
    matches=(
        "All distributed processes registered. Starting with 8 processes",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8",
    ),
    avoids=("MEMBER: 3/x", "All distributed processes are registered nowhere"),
)
def _lightning_banner(line: Line) -> Iterator[Event]:
    if "All distributed processes registered" in line.text:
        count = re.search(r"with (\d{1,7}) processes", line.text)
        world = int(count[1]) if count else None
        backend = None
        for neighbor in (*line.preceding(3), *line.following(3)):
            if match := re.match(r"\s*distributed_backend=(\w{1,20})", neighbor.text):
                backend = match[1]
        yield line.event("distributed_ready", EventRole.OBSERVATION, world_size=world, backend=backend)
        if world is not None:
            yield line.event("host", EventRole.OBSERVATION, world_size=world)
    elif match := _MEMBER.search(line.text):
        yield line.event("distributed_init", EventRole.OBSERVATION, world_size=int(match[1]))


@PARSER.pattern(
    rb"(init[a-z]{0,9}[ _](the )?(torch )?(distributed|process[ _]group)|(process[ _]group|torch[. "
    rb"]distributed|distributed (backend|environment|training))[^\n\r]{0,30}(initiali[sz]ed|ready| "
    rb"up)|distributed init \(rank)",
    safety="A job's own message, not a line of code, a frame, a warning or an error that names the function.",
    matches=(
        "[2026-11-21 08:23:35,837][INFO][rank2] host a100-03 pid 30644: init process group",
        "[2026-11-21 08:23:36,094][INFO][rank0] process group up, world_size=4",
        "> initializing torch distributed ...",
        "| distributed init (rank 0): env://",
        "[rank 1] init_process_group backend=gloo world_size=2",
        "Torch distributed is initialized.",
        "Process group initialized: rank 0 of 8",
        "Initialized process group, world size 16",
    ),
    avoids=(
        '    dist.init_process_group("gloo", timeout=timedelta(seconds=60))',
        '  File "/x/distributed_c10d.py", line 1899, in init_process_group',
        "ValueError: Default process group has not been initialized, please call init_process_group.",
        "UserWarning: init_process_group is deprecated",
        "    default_pg, _ = _new_process_group_helper(",
    ),
    caseless=True,
)
def _setup_message(line: Line) -> Event | None:
    text = _LOGGER.sub("", line.text)
    if _CODE.search(text):
        return None
    if _READY.search(text) and not _INIT.search(text):
        return line.event("distributed_ready", EventRole.OBSERVATION, world_size=_world_size(text))
    return (
        line.event("distributed_init", EventRole.OBSERVATION, world_size=_world_size(text))
        if _INIT.search(text)
        else None
    )


@PARSER.pattern(
    rb"\] Rendezvous complete for workers",
    safety="The agents met; the workers' own process group comes later.",
    matches=("INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous complete for workers. Result:",),
    avoids=("Rendezvous complete for two",),
)
def _elastic_rendezvous(line: Line) -> Event | None:
    if "Rendezvous complete for workers" in line.text:
        return line.event("distributed_init", EventRole.OBSERVATION)
    return None


@PARSER.pattern(
    rb"nproc_per_node[ =]|nproc-per-node[ =]|--nnodes[ =]|--num[-_]processes[ =]|--num[-_]machines[ =]|--num[-_]gpus[ =]",
    safety="An echoed command line of a launcher, with numbers; variables are not expanded here.",
    matches=(
        "+ torchrun --nnodes=2 --nproc_per_node=8 train.py --lr 1e-4",
        "python -m torch.distributed.launch --nproc_per_node=4 bench.py",
        "accelerate launch --num_processes 8 --num_machines 2 train.py",
    ),
    avoids=("usage: prog --nnodes N", "--nnodes=2 is an option of other tools too"),
)
def _launch_command(line: Line) -> Event | None:
    text = line.text
    launch = _LAUNCH.search(text)
    nodes, local, total = (match and int(match[1]) for match in (p.search(text) for p in (_NODES, _LOCAL, _TOTAL)))
    if launch is None or not (nodes or local or total):
        return None
    world = total or (nodes * local if nodes and local else None)
    command = text.strip()[:500]
    return line.event(
        "host", EventRole.OBSERVATION, nnodes=nodes, local_world_size=local, world_size=world, command=command
    )


@PARSER.pattern(
    rb"world[_ -]?size[ =:.'\"]{1,60}[0-9]",
    _WORLD_SIZE,
    safety="A printed world size; group sizes have other names.",
    matches=(
        "world size 4, steps 3000, lr 0.003",
        "using world size: 64, data-parallel-size: 4, tensor-model-parallel size: 4",
        "  world_size ...................................... 64",
        "WORLD_SIZE=32",
    ),
    avoids=("RuntimeError: world_size=4 error", "the world size of 2 is"),
    caseless=True,
)
def _printed_world_size(line: Line, match: re.Match[str]) -> Event | None:
    if _CODE.search(line.text) or not 0 < int(match[1]) < 1_000_000:
        return None
    return line.event("host", EventRole.OBSERVATION, world_size=int(match[1]))
