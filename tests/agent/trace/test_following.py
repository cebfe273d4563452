"""Processes and their libraries, on a fake /proc."""

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
    """A fake /proc with processes; records the attached and detached probes."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.files = folder / "proc", folder / "files"
        self.proc.mkdir()
        self.files.mkdir()
        self.processes_by_pid: dict[int, JobProcess] = {}
        self.attached: list[str] = []
        self.detached: list[object] = []
        self.error: OSError | None = None

    def processes(self) -> Sequence[JobProcess]:
        return list(self.processes_by_pid.values())

    def library(self, name: str) -> Path:
        path = self.files / name
        if not path.exists():
            path.write_bytes(name.encode())
        return path

    def process(self, pid: int, *libraries: str, job: str = "42", start_ticks: int = 1, text: str = "") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        if not (folder / "root").exists():
            (folder / "root").symlink_to("/")
        parts = [MAPS.format(inode=self.library(name).stat().st_ino, path=self.library(name)) for name in libraries]
        (folder / "maps").write_text("".join(parts) + text)
        self.processes_by_pid[pid] = JobProcess(pid, start_ticks, 1, "python", Owner(job=job, rank=pid))

    def track_libraries(self, **options: object) -> LibraryTracker:
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
def test_libraries_are_recognized_by_name(name: str, kind: str | None) -> None:
    kinds = [mapping.kind for mapping in mappings(MAPS.format(inode=5, path=f"/opt/a b/{name}").encode())]
    assert kinds == ([kind] if kind else [])


def test_a_library_of_many_processes_is_probed_once(host: Host) -> None:
    for pid in range(10, 74):
        host.process(pid, "libcudart.so.12", "libnccl.so.2")
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert sorted(host.attached) == ["cudart libcudart.so.12", "nccl libnccl.so.2"]
    assert all(len(tracker.libraries_of(process)) == 2 for process in tracker.processes.values())


def test_a_library_loaded_late_is_found_within_a_tenth_of_the_processs_age(host: Host) -> None:
    host.process(10)
    tracker = host.track_libraries()
    for now in range(100):
        tracker.step(float(now))
    host.process(10, "libcudart.so.12")
    for now in range(100, 111):
        tracker.step(float(now))
    assert host.attached == ["cudart libcudart.so.12"]


def test_a_library_without_processes_is_detached_after_a_delay(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    tracker = host.track_libraries()
    tracker.step(0.0)
    del host.processes_by_pid[10]
    tracker.step(1.0)
    tracker.step(1.0 + following.LINGER_S - 1)
    assert host.detached == []
    tracker.step(2.0 + following.LINGER_S)
    assert host.detached == [1]
    assert not tracker.libraries
    assert not tracker.processes


def test_a_new_process_within_the_delay_uses_the_same_probes(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    tracker = host.track_libraries()
    tracker.step(0.0)
    del host.processes_by_pid[10]
    tracker.step(1.0)
    host.process(11, "libcudart.so.12")
    tracker.step(2.0)
    tracker.step(200.0)
    assert (host.attached, host.detached) == (["cudart libcudart.so.12"], [])


def test_a_library_replaced_on_disk_is_not_probed_instead_of_the_mapped_one(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    host.library("libcudart.so.12").rename(host.files / "old")
    host.library("libcudart.so.12").write_bytes(b"new")
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert host.attached == []
    (library,) = tracker.libraries.values()
    assert "another file by now" in library.error or library.error
    assert library.probe is None


def test_a_deleted_library_needs_root(host: Host) -> None:
    path = host.library("libcudart.so.12")
    host.process(10, text=MAPS.format(inode=path.stat().st_ino, path=f"{path} (deleted)"))
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert host.attached == []
    assert [library.probe for library in tracker.libraries.values()] == [None]


def test_a_library_that_cannot_be_probed_is_retried_and_has_an_error(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    host.error = OSError(22, "Invalid argument")
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert [library.error for library in tracker.libraries.values()] == ["[Errno 22] Invalid argument"]
    host.error = None
    for now in range(1, 100):
        tracker.step(float(now))
    assert host.attached == ["cudart libcudart.so.12"]
    assert [library.error for library in tracker.libraries.values()] == [""]


def test_a_library_named_in_the_settings_is_retried_and_stays_probed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following.time, "monotonic", lambda: 0.0)
    tracker = host.track_libraries()
    host.error = OSError(22, "Invalid argument")
    tracker.add(str(host.library("libcudart.so.12")))
    host.error = None
    host.process(10, "libcudart.so.12")
    for now in range(1, 100):
        tracker.step(float(now))
    assert host.attached == ["cudart libcudart.so.12"]
    del host.processes_by_pid[10]
    tracker.step(100.0)
    tracker.step(200.0 + following.LINGER_S)
    assert (host.detached, len(tracker.libraries)) == ([], 1)


def test_a_reused_pid_is_examined_again(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    tracker = host.track_libraries()
    tracker.step(0.0)
    host.process(10, start_ticks=2)
    tracker.step(1.0)
    assert tracker.processes[10].file_keys == frozenset()


def test_a_process_that_executes_another_program_loses_its_libraries(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    tracker = host.track_libraries()
    tracker.step(0.0)
    host.process(10)
    tracker.step(1.0)
    assert tracker.processes[10].file_keys == frozenset()


def test_many_processes_are_examined_over_several_steps(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    examined_pids: list[int] = []
    real_examine = LibraryTracker._examine
    monkeypatch.setattr(
        LibraryTracker,
        "_examine",
        lambda self, process, now: (examined_pids.append(process.process.pid), real_examine(self, process, now))[1],
    )
    for pid in range(1000, 3000):
        host.process(pid)
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert len(examined_pids) == following.MAX_PER_STEP
    for now in range(1, 32):
        tracker.step(float(now))
    assert set(examined_pids) == set(range(1000, 3000))


def test_only_requested_jobs_are_tracked(host: Host) -> None:
    host.process(10, "libcudart.so.12", job="1")
    host.process(11, "libnccl.so.2", job="2")
    tracker = host.track_libraries(jobs=frozenset({"2"}))
    tracker.step(0.0)
    assert host.attached == ["nccl libnccl.so.2"]


def test_a_mapped_gpu_device_shows_a_context(host: Host) -> None:
    host.process(10, "libcuda.so.1", text="7f0-7f1 rw-s 00000000 00:05 9 /dev/nvidia0\n")
    host.process(11, "libcuda.so.1", text="7f0-7f1 rw-s 00000000 00:05 9 /dev/nvidiactl\n")
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert (tracker.processes[10].has_device, tracker.processes[11].has_device) == (True, False)


def test_a_process_that_ends_during_a_step_is_skipped(host: Host) -> None:
    host.process(10, "libcudart.so.12")
    (host.proc / "10" / "maps").unlink()
    tracker = host.track_libraries()
    tracker.step(0.0)
    assert host.attached == []
