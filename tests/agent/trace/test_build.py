"""The BPF programs are compiled when a package is built; a package without them says so."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from trackside.agent.source import AgentSourceUnavailable
from trackside.agent.trace import libbpf

ROOT = Path(__file__).parents[3]
OBJECTS = {f"{name}.{machine}.o" for name in ("cuda", "nccl", "written") for machine in ("x86_64", "aarch64")}
BPF_MACHINE = 247


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, build: ModuleType) -> Path:
    """The files of a checkout that a package needs."""
    shutil.copytree(ROOT / build.TRACE, tmp_path / build.TRACE, ignore=shutil.ignore_patterns("objects", "__pycache__"))
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/trackside/__init__.py").touch()
    return tmp_path


def test_every_program_is_compiled_for_every_machine(checkout: Path, build: ModuleType) -> None:
    assert build.compile_programs(checkout) == ""
    objects = checkout / build.TRACE / "objects"
    assert {path.name for path in objects.iterdir()} == OBJECTS
    for path in objects.iterdir():
        data = path.read_bytes()
        assert struct.unpack_from("<H", data, 18)[0] == BPF_MACHINE
        assert b".BTF" in data
        assert os.fsencode(checkout) not in data  # no path of the build


def test_the_wheel_and_an_editable_install_contain_the_objects(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, build: ModuleType
) -> None:
    from hatchling.build import build_editable, build_wheel

    monkeypatch.chdir(checkout)
    wheel = build_wheel(str(checkout / "dist"))
    with zipfile.ZipFile(checkout / "dist" / wheel) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist() if "/trace/objects/" in name}
    assert wheel.endswith("-py3-none-any.whl")
    assert names == OBJECTS
    shutil.rmtree(checkout / build.TRACE / "objects")
    build_editable(str(checkout / "dist"))
    assert {path.name for path in (checkout / build.TRACE / "objects").iterdir()} == OBJECTS


def test_without_a_compiler_the_wheel_is_built_with_a_warning(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, build: ModuleType
) -> None:
    monkeypatch.setattr(build, "compilers", list)
    warnings: list[str] = []

    class App:
        display_warning = staticmethod(warnings.append)

    hook = build.ProgramsHook(str(checkout), {}, None, None, "", "wheel", App())
    hook.initialize("standard", {"artifacts": []})
    assert "WITHOUT CUDA and NCCL tracing" in warnings[0]
    assert "neither the Python package ziglang nor clang" in warnings[0]


def test_a_compile_error_is_shown_and_old_objects_are_removed(checkout: Path, build: ModuleType) -> None:
    assert build.compile_programs(checkout) == ""
    (checkout / build.TRACE / "programs" / "cuda.bpf.c").write_text("int broken(\n")
    assert "cuda.bpf.c" in build.compile_programs(checkout)
    assert list((checkout / build.TRACE / "objects").iterdir()) == []


def test_a_package_without_objects_makes_tracing_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libbpf, "OBJECTS", tmp_path)
    with pytest.raises(AgentSourceUnavailable, match="this package was built without tracing"):
        libbpf.machine_code("cuda")
