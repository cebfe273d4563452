"""Processes and their libraries, on a /proc of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from trackside.agent.owners import JobProcess, Owner, Owners
from trackside.agent.trace import following
from trackside.agent.trace.following import LibraryTracker, mappings

MAPS = """\
55d0c0000000-55d0c0001000 r-xp 00000000 08:01 11 /usr/bin/python3.11
7f0000000000-7f0000100000 r-xp 00010000 08:01 {inode} {path}
7f0000100000-7f0000200000 rw-p 00110000 08:01 {inode} {path}
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
"""


class Host(Owners):
    """A /proc, the processes on it, and what was attached."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.files = folder / "proc", folder / "files"
        self.proc.mkdir()
        self.files.mkdir()
        self.listed: dict[int, JobProcess] = {}
        self.attached: list[str] = []
        self.detached: list[object] = []
        self.error: OSError | None = None

    def processes(self) -> Sequence[JobProcess]:
        return list(self.listed.values())

    def library(self, name: str) -> Path:
        path = self.files / name
        if not path.exists():
            path.write_bytes(name.encode())
        return path

    def process(
        self, pid: int, *libraries: str, job: str = "42", started: int = 1, text: str = "", **more: str
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        if not (folder / "root").exists():
            (folder / "root").symlink_to("/")
        parts = [MAPS.format(inode=self.library(name).stat().st_ino, path=self.library(name)) for name in libraries]
        (folder / "maps").write_text("".join(parts) + text)
        self.listed[pid] = JobProcess(pid, started, 1, "python", Owner(job=job, rank=pid))

    def following(self, **options: object) -> LibraryTracker:
        def attach(kind: str, path: str, fd: int) -> object:
            if self.error is not None:
                raise self.error
            self.attached.append(f"{kind} {os.read(fd, 100).decode()}")
            return len(self.attached)

        return LibraryTracker(
            self.proc, self, frozenset({"cudart", "cuda", "nccl"}), attach, self.detached.append, **options
        )  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libcudart.so.12", "cudart"),
        ("libcudart-d0da41ae.so.11.0", "cudart"),
        ("libcudart.so.12.4.127", "cudart"),
        ("libcuda.so.1", "cuda"),
        ("libcuda.so.535.104.05", "cuda"),
        ("libnccl.so.2", "nccl"),
        ("libnccl-net.so", None),
        ("libcudadebugger.so.1", None),
        ("libcudnn.so.9", None),
        ("libcuda.so.1.txt", None),
    ],
)
def test_libraries_are_told_by_name(name: str, kind: str | None) -> None:
    found = [mapping.kind for mapping in mappings(MAPS.format(inode=5, path=f"/opt/a b/{name}").encode())]
    assert found == ([kind] if kind else [])


def test_a_file_that_many_map_is_probed_once(host: Host) -> None:
    for pid in range(10, 74):
        host.process(pid, "libcudart.so.12", "libnccl.so.2")
    followed = host.following()
    followed.step(0.0)
    assert sorted(host.attached) == ["cudart libcudart.so.12", "nccl libnccl.so.2"]
    assert all(len(followed.libraries_of(process)) == 2 for process in followed.processes.values())


def test_a_library_loaded_late_is_found_within_a_tenth_of_the_processs_age(host: Host) -> None:
    host.process(10)
    followed = host.following()
    for now in range(100):
        followed.step(float(now))
    host.process(10, "libcudart.so.12")
    for now in range(100, 111):
        followed.step(float(now))
    assert host.attached == ["cudart libcudart.so.12"]


def test_what_nobody_maps_any_more_is_taken_back_after_a_while(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    followed = host.following()
    followed.step(0.0)
    del host.listed[10]
    followed.step(1.0)
    followed.step(1.0 + following.LINGER_S - 1)
    assert host.detached == []
    followed.step(2.0 + following.LINGER_S)
    assert host.detached == [1]
    assert not followed.libraries
    assert not followed.processes


def test_the_next_process_within_that_while_uses_the_same_probes(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    followed = host.following()
    followed.step(0.0)
    del host.listed[10]
    followed.step(1.0)
    host.process(11, "libcudart.so.12")
    followed.step(2.0)
    followed.step(200.0)
    assert (host.attached, host.detached) == (["cudart libcudart.so.12"], [])


def test_a_library_replaced_on_disk_is_not_mistaken_for_the_one_in_use(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    host.library("libcudart.so.12").rename(host.files / "old")
    host.library("libcudart.so.12").write_bytes(b"new")
    followed = host.following()
    followed.step(0.0)
    assert host.attached == []
    (library,) = followed.libraries.values()
    assert "was replaced" in library.error or library.error
    assert library.probe is None


def test_a_deleted_one_needs_root(host: Host) -> None:
    path = host.library("libcudart.so.12")
    host.process(10, text=MAPS.format(inode=path.stat().st_ino, path=f"{path} (deleted)"))
    followed = host.following()
    followed.step(0.0)
    assert host.attached == []
    assert [each.probe for each in followed.libraries.values()] == [None]


def test_one_that_can_not_be_probed_is_tried_again_later_and_said_why(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    host.error = OSError(22, "Invalid argument")
    followed = host.following()
    followed.step(0.0)
    assert [library.error for library in followed.libraries.values()] == ["[Errno 22] Invalid argument"]
    host.error = None
    for now in range(1, 100):
        followed.step(float(now))
    assert host.attached == ["cudart libcudart.so.12"]
    assert [library.error for library in followed.libraries.values()] == [""]


def test_a_pid_that_is_another_process_is_looked_at_anew(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    followed = host.following()
    followed.step(0.0)
    host.process(10, started=2)
    followed.step(1.0)
    assert followed.processes[10].file_keys == frozenset()


def test_one_that_executes_another_program_lets_go_of_its_libraries(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    followed = host.following()
    followed.step(0.0)
    host.process(10)
    followed.step(1.0)
    assert followed.processes[10].file_keys == frozenset()


def test_two_thousand_processes_at_once_are_looked_at_bit_by_bit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    seen = LibraryTracker._examine
    monkeypatch.setattr(
        LibraryTracker,
        "_examine",
        lambda self, process, now: (looks.append(process.process.pid), seen(self, process, now))[1],
    )
    for pid in range(1000, 3000):
        host.process(pid)
    followed = host.following()
    followed.step(0.0)
    assert len(looks) == following.MAX_PER_STEP
    for now in range(1, 32):
        followed.step(float(now))
    assert set(looks) == set(range(1000, 3000))


def test_only_the_jobs_asked_for_are_followed(host: Host) -> None:
    host.process(10, "libcudart.so.12", job="1")
    host.process(11, "libnccl.so.2", job="2")
    followed = host.following(jobs=frozenset({"2"}))
    followed.step(0.0)
    assert host.attached == ["nccl libnccl.so.2"]


def test_memory_of_the_driver_shows_a_context(host: Host) -> None:
    host.process(10, "libcuda.so.1", text="7f0-7f1 rw-s 00000000 00:05 9 /dev/nvidia0\n")
    host.process(11, "libcuda.so.1", text="7f0-7f1 rw-s 00000000 00:05 9 /dev/nvidiactl\n")
    followed = host.following()
    followed.step(0.0)
    assert (followed.processes[10].has_device, followed.processes[11].has_device) == (True, False)


def test_one_that_vanishes_meanwhile_is_passed_over(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    (host.proc / "10" / "maps").unlink()
    followed = host.following()
    followed.step(0.0)
    assert host.attached == []
