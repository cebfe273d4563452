"""What NCCL_DEBUG=INFO prints while communicators are made."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Version, network and communicator of every rank, at its first collective."""
    if "train" not in act.phases and "compile" not in act.phases:
        return
    now, ranks = act.phases["load"][1] + 0.2, len(act.places)
    for place in act.places:
        head = (
            f"{place.node}:{stage.pid(act, place.rank)}:{stage.pid(act, place.rank) + 211} [{place.local}] NCCL INFO "
        )
        if place.rank == 0:
            yield Entry(now, f"{head}NCCL version 2.20.5+cuda12.4", place.rank, marked=True)
        if stage.transport == "IB":
            ports = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(stage.scenario.cluster.gpus_per_node))
            net = (
                f"NET/IB : Using {ports} [RO]; OOB eth0:10.20.0.{10 + place.rank // 8 % 200}<0>\n{head}Using network IB"
            )
        else:
            net = f"NET/IB : No device found.\n{head}NET/Socket : Using [0]eth0:10.20.0.{10 + place.rank // 8 % 200}<0>\n{head}Using network Socket"
        yield Entry(now + 0.01, f"{head}{net}", place.rank, marked=True)
        if len(act.nodes) > 1:
            way = "NET/IB/0/GDRDMA" if stage.transport == "IB" else "NET/Socket/0"
            peer = (place.rank + 1) % ranks
            yield Entry(
                now + 1.0,
                f"{head}Channel 00/0 : {place.rank}[{place.local}] -> {peer}[{peer % 8}] [send] via {way}",
                place.rank,
                marked=True,
            )
        yield Entry(
            now + 1.5,
            f"{head}comm 0x55d1c0{place.rank:04x}00 rank {place.rank} nranks {ranks} cudaDev {place.local} nvmlDev {place.gpu} "
            f"busId {stage.pci(place.gpu)[-7:-5].lower()}000 commId 0x9a1f4c2b7e3d5501 - Init COMPLETE",
            place.rank,
            marked=True,
        )
