"""Which GPU a process works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside.agent.owners import Owner, Owners
from trackside.agent.trace.tracer import ProcessGpus


class Driver(Owners):
    """Owners of GPUs as the driver reports them."""

    def __init__(self, **owners: Owner) -> None:
        self.owners = {name.removeprefix("gpu"): owner for name, owner in owners.items()}

    def of_gpu(self, gpu: str) -> Owner | None:
        return self.owners.get(gpu)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


RANK = Owner(job="42", rank=5, local_rank=1)


@pytest.mark.parametrize(
    ("visible", "chosen", "expected"),
    [
        (None, 0b10, ("1", None)),
        (None, 0b11, ("1", None)),  # both: the local rank decides
        (None, 0b1101, (None, None)),
        (None, 0, (None, None)),
        (("0", "1", "2", "3"), 0b100, ("2", None)),
        (("3", "2", "1", "0"), 0b1, ("3", None)),
        (("0",), 0b1, (None, None)),  # within the job's cgroup the first GPU may be any
        (("GPU-aaa", "GPU-bbb"), 0b10, (None, "GPU-bbb")),
        (("MIG-aaa",), 0b1, (None, None)),
        (("0",), 0b10, (None, None)),
        ((), 0b1, (None, None)),
    ],
)
def test_the_gpu_of_a_process_from_its_chosen_device(
    dev: Path, visible: tuple[str, ...] | None, chosen: int, expected: tuple[str | None, str | None]
) -> None:
    assert ProcessGpus(dev, Owners()).of(RANK, visible, chosen) == expected


def test_the_drivers_process_list_has_priority(dev: Path) -> None:
    devices = ProcessGpus(dev, Driver(gpu3=RANK, gpu2=Owner(job="42", rank=6)))
    assert devices.of(RANK, ("0",), 0b1) == ("3", None)


def test_a_process_with_several_gpus_has_no_single_gpu(dev: Path) -> None:
    assert ProcessGpus(dev, Driver(gpu3=RANK, gpu2=RANK)).of(RANK, None, 0b1) == (None, None)


def test_a_node_without_gpus(tmp_path: Path) -> None:
    assert ProcessGpus(tmp_path / "none", Driver()).of(None, None, 0) == (None, None)
