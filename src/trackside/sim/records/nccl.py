"""What NCCL_DEBUG=INFO prints while communicators are created."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Version, network and communicator of every rank, at its first collective."""
    if "train" not in attempt.phases and "compile" not in attempt.phases:
        return
    now, ranks = attempt.phases["load"][1] + 0.2, len(attempt.placements)
    for placement in attempt.placements:
        prefix = f"{placement.node}:{sim.pid(attempt, placement.rank)}:{sim.pid(attempt, placement.rank) + 211} [{placement.local_rank}] NCCL INFO "
        if placement.rank == 0:
            yield PrintedText(now, f"{prefix}NCCL version 2.20.5+cuda12.4", placement.rank, marked=True)
        if sim.transport == "IB":
            ports = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(sim.scenario.cluster.gpus_per_node))
            net = f"NET/IB : Using {ports} [RO]; OOB eth0:10.20.0.{10 + placement.rank // 8 % 200}<0>\n{prefix}Using network IB"
        else:
            net = f"NET/IB : No device found.\n{prefix}NET/Socket : Using [0]eth0:10.20.0.{10 + placement.rank // 8 % 200}<0>\n{prefix}Using network Socket"
        yield PrintedText(now + 0.01, f"{prefix}{net}", placement.rank, marked=True)
        if len(attempt.nodes) > 1:
            transport = "NET/IB/0/GDRDMA" if sim.transport == "IB" else "NET/Socket/0"
            peer = (placement.rank + 1) % ranks
            yield PrintedText(
                now + 1.0,
                f"{prefix}Channel 00/0 : {placement.rank}[{placement.local_rank}] -> {peer}[{peer % 8}] [send] via {transport}",
                placement.rank,
                marked=True,
            )
        yield PrintedText(
            now + 1.5,
            f"{prefix}comm 0x55d1c0{placement.rank:04x}00 rank {placement.rank} nranks {ranks} cudaDev {placement.local_rank} nvmlDev {placement.gpu} "
            f"busId {sim.pci(placement.gpu)[-7:-5].lower()}000 commId 0x9a1f4c2b7e3d5501 - Init COMPLETE",
            placement.rank,
            marked=True,
        )
