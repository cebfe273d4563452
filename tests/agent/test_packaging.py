"""What a site installs: units, manifests and scripts agree with the agent."""

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
from trackside.agent.delivery.exposition import series_text
from trackside.agent.source import sources

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "systemd/trackside-agent.service"
SCRIPTS = sorted((PACKAGING / "slurm").glob("*.sh"))
PORT = AgentOptions().address[1]


def service_section(path: Path) -> dict[str, list[str]]:
    """The [Service] section of a unit: key -> values."""
    values_by_key: dict[str, list[str]] = {}
    for line in path.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values_by_key.setdefault(key, []).append(value)
    return values_by_key


def assert_known_variables(variables: dict[str, str]) -> None:
    """Fail if the agent does not know one of the variables or refuses its value."""
    load("/dev/null", environ=variables)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TRACKSIDE_"):
            monkeypatch.delenv(name)


# -- systemd


@pytest.mark.service
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
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
    result = subprocess.run(
        [str(analyze), "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    messages = [line for line in result.stderr.splitlines() if "trackside" in line]
    assert (result.returncode, messages) == (0, []), result.stderr


@pytest.mark.service
def test_the_unit_is_confined_according_to_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "systemd (apt-get install systemd)")
    result = subprocess.run(
        [str(analyze), "security", "--offline=true", "--no-pager", "--threshold=45", str(UNIT)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-1500:]


def test_the_unit_agrees_with_the_agent() -> None:
    service = service_section(UNIT)
    [command] = service["ExecStart"]
    assert command.split()[1:] == ["-m", "trackside.agent", "run"]
    assert f"/var/lib/{service['StateDirectory'][0]}" == STATE
    assert service["User"][0] in (PACKAGING / "systemd/trackside-agent.sysusers.conf").read_text().split()
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    assert int(service["MemoryMax"][0].removesuffix("M")) >= 2 * 80


def test_the_units_grant_every_capability_that_sources_need() -> None:
    needed = {
        capability
        for source in sources().values()
        if source.on
        for capability in re.findall(r"CAP_[A-Z_]+", source.needs)
    }
    granted = set(service_section(UNIT)["AmbientCapabilities"][0].split())
    assert granted <= needed
    assert needed - granted <= {"CAP_SYS_ADMIN"}  # for GPM if the driver restricts it: too broad to grant by default
    needed_for_tracing = {
        capability for id_ in ("cuda", "nccl") for capability in re.findall(r"CAP_[A-Z_]+", sources()[id_].needs)
    }
    assert needed_for_tracing - granted == set(
        service_section(PACKAGING / "systemd/tracing.conf")["AmbientCapabilities"][0].split()
    )


def test_the_tracing_drop_in_switches_tracing_on() -> None:
    [environment] = service_section(PACKAGING / "systemd/tracing.conf")["Environment"]
    config = load("/dev/null", environ=dict(variable.split("=") for variable in environment.split()))
    assert {settings.source.id for settings in config.sources if settings.on and not settings.source.on} == {
        "cuda",
        "nccl",
    }


def test_the_example_settings_are_valid() -> None:
    path = PACKAGING / "systemd/agent.toml"
    config = load(path, environ={})
    assert config.agent == AgentOptions()
    assert config.remote_write is not None
    assert config.loki is not None
    assert str(FILE) in path.read_text().splitlines()[0]
    for line in path.read_text().splitlines():  # also lines that are commented out
        if commented_out := re.fullmatch(r"# (\w+ = .*)", line):
            tomllib.loads(commented_out[1])


# -- containers


def test_the_agent_knows_the_variables_of_the_container() -> None:
    text = (PACKAGING / "container/Containerfile").read_text()
    variables = dict(re.findall(rf"({PREFIX}\w+)=(\S+)", text))
    assert set(variables) == {f"{PREFIX}PROC", f"{PREFIX}SYS", f"{PREFIX}DEV"}
    assert_known_variables(variables)
    assert re.search(rf"^EXPOSE {PORT}$", text, re.MULTILINE)
    assert f"127.0.0.1:{PORT}/-/healthy" in text
    assert f"VOLUME {STATE}" in text
    for name in re.search(r"^COPY (.*) /src/$", text, re.MULTILINE)[1].split():  # type: ignore[index]
        assert (PACKAGING.parent / name).is_file(), name
    for module in re.search(r"pip install --no-cache-dir (msgspec.*?) \\", text)[1].split():  # type: ignore[index]
        assert module in (PACKAGING.parent / "pyproject.toml").read_text()


@pytest.fixture
def manifests() -> dict[str, Any]:
    manifest_list = documents((PACKAGING / "kubernetes/daemonset.yaml").read_text())
    return {manifest["kind"]: manifest for manifest in manifest_list}


def test_the_settings_of_the_daemonset_are_valid(manifests: dict[str, Any], tmp_path: Path) -> None:
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
    [agent_container] = manifests["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(agent_container, dict)
    return agent_container


def test_references_within_the_daemonset_are_consistent(manifests: dict[str, Any]) -> None:
    spec = manifests["DaemonSet"]["spec"]
    pod = spec["template"]["spec"]
    agent = container(manifests)
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert {mount["name"] for mount in agent["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    by_name = {volume["name"]: volume for volume in pod["volumes"]}
    assert by_name["config"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    assert by_name["token"]["secret"]["secretName"] == manifests["Secret"]["metadata"]["name"]
    assert {manifest["metadata"]["namespace"] for kind, manifest in manifests.items() if kind != "Namespace"} == {
        manifests["Namespace"]["metadata"]["name"]
    }
    assert agent["ports"][0]["containerPort"] == PORT
    assert {agent[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/-/healthy",
        "/-/ready",
    }
    variables = {entry["name"]: entry.get("value", "n1") for entry in agent["env"] if entry["name"].startswith(PREFIX)}
    assert variables.pop(f"{PREFIX}CONFIG") == f"{agent['volumeMounts'][0]['mountPath']}/agent.toml"
    assert_known_variables(variables)


def test_the_daemonset_has_no_unnecessary_privileges(manifests: dict[str, Any]) -> None:
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
    capabilities = service_section(UNIT)["AmbientCapabilities"][0].split()
    assert [f"CAP_{name}" for name in context["capabilities"]["add"]] == capabilities
    assert [mount["name"] for mount in agent["volumeMounts"] if not mount.get("readOnly")] == ["state"]


# -- Slurm


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_and_valid_in_every_shell(script: Path) -> None:
    assert os.access(script, os.X_OK)
    for shell in ("sh", "dash", "bash"):
        if shutil.which(shell):
            result = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=10, check=False)
            assert (result.returncode, result.stderr) == (0, "")


def run_script(script: str, *programs: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script as slurmd does, with a minimal environment."""
    path = ":".join([*map(str, programs), "/usr/sbin:/usr/bin:/sbin:/bin"])
    return subprocess.run(
        [str(PACKAGING / "slurm" / script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": path, "SLURM_JOB_ID": "1", **environ},
    )


def fake_program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("status", "calls"),
    [
        (0, ["--quiet is-active trackside-agent.service"]),
        (3, ["--quiet is-active trackside-agent.service", "--no-block start trackside-agent.service"]),
    ],
)
def test_the_prolog_starts_the_agent_if_it_is_not_running(tmp_path: Path, status: int, calls: list[str]) -> None:
    programs = fake_program(
        tmp_path / "bin", "systemctl", f'echo "$@" >>{tmp_path}/calls\n[ "$2" != is-active ] || exit {status}'
    )
    result = run_script("prolog.sh", programs)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "calls").read_text().splitlines() == calls


def test_the_prolog_never_fails_a_job(tmp_path: Path) -> None:
    programs = fake_program(tmp_path / "bin", "systemctl", "exit 1")
    fake_program(tmp_path / "bin", "logger", "exit 1")
    assert run_script("prolog.sh", programs).returncode == 0


@pytest.fixture
def waiting_counts() -> Iterator[list[float]]:
    """Serves an agent's metrics for the epilog; the numbers of waiting items, one per response.

    At first the list contains the server's port.
    """
    counts: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            count = counts.pop(0) if len(counts) > 1 else counts[0]
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

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    counts.append(server.server_port)
    yield counts
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_epilog_waits_until_everything_is_sent(waiting_counts: list[float]) -> None:
    url = f"http://127.0.0.1:{int(waiting_counts.pop())}/metrics"
    waiting_counts += [40, 12, 0]
    result = run_script("epilog.sh", TRACKSIDE_AGENT_URL=url)
    assert (result.returncode, result.stderr) == (0, "")
    assert waiting_counts == [0]


def test_the_epilog_waits_up_to_its_limit_and_not_without_an_agent(waiting_counts: list[float]) -> None:
    url = f"http://127.0.0.1:{int(waiting_counts.pop())}/metrics"
    waiting_counts.append(40)
    begin = time.monotonic()
    assert run_script("epilog.sh", TRACKSIDE_AGENT_URL=url, TRACKSIDE_SENT_WAIT="2").returncode == 0
    assert 2.0 <= time.monotonic() - begin < 8.0
    begin = time.monotonic()
    assert run_script("epilog.sh", TRACKSIDE_AGENT_URL="http://127.0.0.1:9/metrics").returncode == 0
    assert time.monotonic() - begin < 4.0


def test_the_default_url_of_the_epilog_is_that_of_the_agent() -> None:
    assert f"http://{AgentOptions().listen}/metrics" in (PACKAGING / "slurm/epilog.sh").read_text()
