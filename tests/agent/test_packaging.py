"""What a site installs: units, manifests and scripts that agree with the agent, and say what they do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plain_yaml import documents
from tests.services import missing
from trackside.agent.config import FILE, PREFIX, STATE, AgentOptions, load
from trackside.agent.out.exposition import series_text
from trackside.agent.source import sources

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "systemd/trackside-agent.service"
SCRIPTS = sorted((PACKAGING / "slurm").glob("*.sh"))
PORT = AgentOptions().address[1]


def unit(path: Path) -> dict[str, list[str]]:
    """The keys of [Service], each with its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def known(variables: dict[str, str]) -> None:
    """Fail where the agent takes none of that name, or not that value."""
    load("/dev/null", environ=variables)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TRACKSIDE_"):
            monkeypatch.delenv(name)


# -- systemd


@pytest.mark.service
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "systemd (apt-get install systemd)")
    folder = tmp_path / "trackside-agent.service.d"
    folder.mkdir()
    shutil.copy(PACKAGING / "systemd/tracing.conf", folder)
    text = (
        UNIT.read_text()
        .replace("/opt/trackside/bin/python", sys.executable)
        .replace("Documentation=", "# Documentation=")
    )
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        [str(analyze), "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "trackside" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@pytest.mark.service
def test_systemd_finds_it_well_confined(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "systemd (apt-get install systemd)")
    done = subprocess.run(
        [str(analyze), "security", "--offline=true", "--no-pager", "--threshold=45", str(UNIT)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:]


def test_the_unit_agrees_with_the_agent() -> None:
    service = unit(UNIT)
    [command] = service["ExecStart"]
    assert command.split()[1:] == ["-m", "trackside.agent", "run"]
    assert f"/var/lib/{service['StateDirectory'][0]}" == STATE
    assert service["User"][0] in (PACKAGING / "systemd/trackside-agent.sysusers.conf").read_text().split()
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    assert int(service["MemoryMax"][0].removesuffix("M")) >= 2 * 80


def test_every_capability_that_sources_ask_for_is_given_by_the_unit_or_for_tracing() -> None:
    asked = {found for source in sources().values() if source.on for found in re.findall(r"CAP_[A-Z_]+", source.needs)}
    given = set(unit(UNIT)["AmbientCapabilities"][0].split())
    assert given <= asked
    assert asked - given <= {"CAP_SYS_ADMIN"}  # for GPM where the driver restricts it: too much to ask for
    traced = {found for id_ in ("cuda", "nccl") for found in re.findall(r"CAP_[A-Z_]+", sources()[id_].needs)}
    assert traced - given == set(unit(PACKAGING / "systemd/tracing.conf")["AmbientCapabilities"][0].split())


def test_the_tracing_drop_in_switches_tracing_on() -> None:
    [environment] = unit(PACKAGING / "systemd/tracing.conf")["Environment"]
    config = load("/dev/null", environ=dict(each.split("=") for each in environment.split()))
    assert {
        collection.source.id for collection in config.collections if collection.on and not collection.source.on
    } == {"cuda", "nccl"}


def test_the_example_settings_are_settings() -> None:
    path = PACKAGING / "systemd/agent.toml"
    config = load(path, environ={})
    assert config.agent == AgentOptions()
    assert config.remote_write is not None
    assert config.loki is not None
    assert str(FILE) in path.read_text().splitlines()[0]
    for line in path.read_text().splitlines():  # what is commented out too
        if found := re.fullmatch(r"# (\w+ = .*)", line):
            tomllib.loads(found[1])


# -- containers


def test_the_container_s_variables_are_the_agent_s() -> None:
    text = (PACKAGING / "container/Containerfile").read_text()
    variables = dict(re.findall(rf"({PREFIX}\w+)=(\S+)", text))
    assert set(variables) == {f"{PREFIX}PROC", f"{PREFIX}SYS", f"{PREFIX}DEV"}
    known(variables)
    assert re.search(rf"^EXPOSE {PORT}$", text, re.MULTILINE)
    assert f"127.0.0.1:{PORT}/-/healthy" in text
    assert f"VOLUME {STATE}" in text
    for name in re.search(r"^COPY (.*) /src/$", text, re.MULTILINE)[1].split():  # type: ignore[index]
        assert (PACKAGING.parent / name).is_file(), name
    for module in re.search(r"pip install --no-cache-dir (msgspec.*?) \\", text)[1].split():  # type: ignore[index]
        assert module in (PACKAGING.parent / "pyproject.toml").read_text()


@pytest.fixture
def manifests() -> dict[str, Any]:
    found = documents((PACKAGING / "kubernetes/daemonset.yaml").read_text())
    return {each["kind"]: each for each in found}


def test_the_daemonset_s_settings_are_settings(manifests: dict[str, Any], tmp_path: Path) -> None:
    text = manifests["ConfigMap"]["data"]["agent.toml"]
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    (tmp_path / "agent.toml").write_text(text.replace("/etc/trackside-token/token", str(token)))
    config = load(tmp_path / "agent.toml", environ={})
    assert config.agent.address == ("0.0.0.0", PORT)
    assert config.remote_write is not None
    assert config.loki is not None
    mounts = container(manifests)["volumeMounts"]
    assert {str(config.node.proc), str(config.node.sys), str(config.state)} <= {mount["mountPath"] for mount in mounts}


def container(manifests: dict[str, Any]) -> dict[str, Any]:
    [found] = manifests["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_daemonset_hangs_together(manifests: dict[str, Any]) -> None:
    spec = manifests["DaemonSet"]["spec"]
    pod = spec["template"]["spec"]
    agent = container(manifests)
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert {each["name"] for each in agent["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    by_name = {volume["name"]: volume for volume in pod["volumes"]}
    assert by_name["config"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    assert by_name["token"]["secret"]["secretName"] == manifests["Secret"]["metadata"]["name"]
    assert {each["metadata"]["namespace"] for kind, each in manifests.items() if kind != "Namespace"} == {
        manifests["Namespace"]["metadata"]["name"]
    }
    assert agent["ports"][0]["containerPort"] == PORT
    assert {agent[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/-/healthy",
        "/-/ready",
    }
    variables = {each["name"]: each.get("value", "n1") for each in agent["env"] if each["name"].startswith(PREFIX)}
    assert variables.pop(f"{PREFIX}CONFIG") == f"{agent['volumeMounts'][0]['mountPath']}/agent.toml"
    known(variables)


def test_the_daemonset_asks_for_no_more_than_it_needs(manifests: dict[str, Any]) -> None:
    pod, agent = manifests["DaemonSet"]["spec"]["template"]["spec"], container(manifests)
    context = agent["securityContext"]
    assert pod["hostPID"]
    assert not pod["automountServiceAccountToken"]
    assert (context["privileged"], context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (
        False,
        False,
        True,
    )
    assert context["capabilities"]["drop"] == ["ALL"]
    given = unit(UNIT)["AmbientCapabilities"][0].split()
    assert [f"CAP_{each}" for each in context["capabilities"]["add"]] == given
    assert [each["name"] for each in agent["volumeMounts"] if not each.get("readOnly")] == ["state"]


# -- Slurm


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sh(script: Path) -> None:
    assert os.access(script, os.X_OK)
    for shell in ("sh", "dash", "bash"):
        if shutil.which(shell):
            done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=10, check=False)
            assert (done.returncode, done.stderr) == (0, "")


def bare(script: str, *programs: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A script as slurmd runs it: with hardly an environment."""
    path = ":".join([*map(str, programs), "/usr/sbin:/usr/bin:/sbin:/bin"])
    return subprocess.run(
        [str(PACKAGING / "slurm" / script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": path, "SLURM_JOB_ID": "1", **environ},
    )


def fake(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("active", "asked"),
    [
        (0, ["--quiet is-active trackside-agent.service"]),
        (3, ["--quiet is-active trackside-agent.service", "--no-block start trackside-agent.service"]),
    ],
)
def test_the_prolog_starts_the_agent_where_it_doesn_t_run(tmp_path: Path, active: int, asked: list[str]) -> None:
    programs = fake(
        tmp_path / "bin", "systemctl", f'echo "$@" >>{tmp_path}/asked\n[ "$2" != is-active ] || exit {active}'
    )
    done = bare("prolog.sh", programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "asked").read_text().splitlines() == asked


def test_the_prolog_never_fails_a_job(tmp_path: Path) -> None:
    programs = fake(tmp_path / "bin", "systemctl", "exit 1")
    fake(tmp_path / "bin", "logger", "exit 1")
    assert bare("prolog.sh", programs).returncode == 0


@pytest.fixture
def waiting() -> Iterator[list[float]]:
    """An agent's metrics, as the epilog reads them: how many wait, one answer after the other."""
    left: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            count = left.pop(0) if len(left) > 1 else left[0]
            lines = [
                f"{series_text('trackside_send_waiting', {'node': 'n1', 'receiver': name})} {value}\n"
                for name, value in (("loki", count), ("remote_write", 0))
            ]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                "".join(
                    ["# TYPE trackside_send_waiting gauge\n", *lines, 'trackside_send_waiting_bytes{x="1"} 7\n']
                ).encode()
            )

        def log_message(self, *given: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    left.append(server.server_port)
    yield left
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_epilog_waits_until_all_is_sent(waiting: list[float]) -> None:
    url = f"http://127.0.0.1:{int(waiting.pop())}/metrics"
    waiting += [40, 12, 0]
    done = bare("epilog.sh", TRACKSIDE_AGENT_URL=url)
    assert (done.returncode, done.stderr) == (0, "")
    assert waiting == [0]


def test_the_epilog_waits_no_longer_than_it_is_told_and_not_at_all_without_an_agent(waiting: list[float]) -> None:
    url = f"http://127.0.0.1:{int(waiting.pop())}/metrics"
    waiting.append(40)
    begin = time.monotonic()
    assert bare("epilog.sh", TRACKSIDE_AGENT_URL=url, TRACKSIDE_SENT_WAIT="2").returncode == 0
    assert 2.0 <= time.monotonic() - begin < 8.0
    begin = time.monotonic()
    assert bare("epilog.sh", TRACKSIDE_AGENT_URL="http://127.0.0.1:9/metrics").returncode == 0
    assert time.monotonic() - begin < 4.0


def test_the_epilog_asks_where_the_agent_listens() -> None:
    assert f"http://{AgentOptions().listen}/metrics" in (PACKAGING / "slurm/epilog.sh").read_text()
