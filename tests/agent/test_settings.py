"""The agent's settings from file, environment and flags; errors name the line, variable or flag."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner

from trackside.agent.__main__ import main
from trackside.agent.config import Config, load
from trackside.agent.source import sources
from trackside.cli import main as trackside
from trackside.settings import ConfigError, SettingValue


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TRACKSIDE_") or name in ("STATE_DIRECTORY", "SLURMD_NODENAME"):
            monkeypatch.delenv(name)


def write_config(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def load_text(folder: Path, text: str, **environ: str) -> Config:
    return load(write_config(folder, text), environ=environ)


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


def test_by_default_the_agent_collects_and_serves_only_on_this_machine() -> None:
    config = load(environ={})
    assert config.agent.address == ("127.0.0.1", 9481)
    assert config.remote_write is None
    assert config.loki is None
    assert str(config.state) == "/var/lib/trackside-agent"
    enabled = {settings.source.id for settings in config.sources if settings.on}
    assert enabled == {id_ for id_, source in sources().items() if source.on}
    assert "cpu" in enabled
    assert not {"cuda", "nccl"} & enabled  # tracing is opt-in


def test_all_sections_of_the_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t\n")
    (tmp_path / "token").chmod(0o600)
    config = load_text(
        tmp_path,
        """
        [agent]
        node = "gpu-01"
        listen = "[::1]:9999"
        state = "/srv/agent"
        proc = "/host/proc"
        labels = { cluster = "a", rack = "7" }
        [collect.cpu]
        on = false
        [collect.memory]
        interval_s = 5
        timeout_s = 2.5
        [send.remote_write]
        url = "https://receiver:9480/api/v1/write"
        bearer_file = "token"
        headers = { X-Scope-OrgID = "gpu" }
        timeout_s = 7
        [send.loki]
        url = "http://user:pass@loki:3100"
        tenant = "gpu"
        [spool]
        max_disk_bytes = 1048576
        """,
    )
    assert (config.node.name, config.node.proc) == ("gpu-01", Path("/host/proc"))
    assert config.agent.address == ("::1", 9999)
    assert config.agent.labels == {"cluster": "a", "rack": "7"}
    by_id = {settings.source.id: settings for settings in config.sources}
    assert not by_id["cpu"].on
    assert (by_id["memory"].interval_s, by_id["memory"].timeout_s) == (5.0, 2.5)
    assert config.remote_write is not None
    assert config.remote_write.receiver.bearer == "s3cr3t"
    assert config.remote_write.receiver.timeout_s == 7.0
    assert config.loki is not None
    assert (config.loki.tenant, config.loki.receiver.user, config.loki.receiver.url) == (
        "gpu",
        "user",
        "http://loki:3100",
    )
    assert config.spool_folder == Path("/srv/agent/spool")


def test_the_environment_overrides_the_file_and_flags_override_both(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[agent]\nnode = "file"\njob = "1"\nlisten = ""\n[collect.cpu]\non = false\n')
    environ = {
        "TRACKSIDE_AGENT_CONFIG": str(path),
        "TRACKSIDE_AGENT_NODE": "environment",
        "TRACKSIDE_AGENT_JOB": "2",
        "TRACKSIDE_AGENT_COLLECT_CPU_ON": "true",
        "TRACKSIDE_AGENT_COLLECT_KERNEL_LOG_INTERVAL_S": "3",
        "TRACKSIDE_AGENT_SEND_REMOTE_WRITE_URL": "http://r",
        "TRACKSIDE_AGENT_SEND_REMOTE_WRITE_BEARER": "$TOKEN",
        "TRACKSIDE_AGENT_LABELS": '{ cluster = "a" }',
        "TOKEN": "t0ken",
    }
    config = load(flags={"agent.job": SettingValue("3", "--job", text=True)}, environ=environ)
    assert (config.node.name, config.agent.job, config.agent.listen) == ("environment", "3", "")
    by_id = {settings.source.id: settings for settings in config.sources}
    assert (by_id["cpu"].on, by_id["cpu"].origin) == (True, "TRACKSIDE_AGENT_COLLECT_CPU_ON")
    assert by_id["kernel_log"].interval_s == 3.0
    assert config.remote_write is not None
    assert config.remote_write.receiver.bearer == "t0ken"
    assert config.agent.labels == {"cluster": "a"}


def test_the_state_directory_of_systemd_is_used() -> None:
    config = load(environ={"STATE_DIRECTORY": "/var/lib/trackside-agent:/var/lib/other"})
    assert str(config.state) == "/var/lib/trackside-agent"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agent]\nnod = 1\n", "agent.toml line 2: [agent] has no key 'nod'; did you mean 'node'?"),
        ("[agent]\nnode = 1\n", "agent.toml line 2: agent.node must be a string, not 1"),
        ("[agent]\nlisten = '9481'\n", "agent.toml line 2: [agent] listen: '9481' is not HOST:PORT"),
        ("[agent]\nlabels = { 'a-b' = 'x' }\n", "labels: 'a-b' is not a valid label name"),
        ("[agent]\nlabels = { node = 'x' }\n", "labels: 'node' is set by the agent itself"),
        ("[agnt]\nnode = 'x'\n", "agent.toml line 1: unknown section [agnt]; did you mean [agent]?"),
        ("[collect.gpuu]\non = true\n", "agent.toml line 1: unknown section [collect.gpuu]; did you mean [collect.gpu]?"),
        ("[agent]\n[colect.gpu]\non = true\n", "agent.toml line 2: unknown section [colect.gpu]; did you mean [collect.gpu]?"),
        ("[agent]\n[sned.loki]\nurl = 'http://l'\n", "agent.toml line 2: unknown section [sned.loki]; did you mean [send.loki]?"),
        ("[collect]\ncpu = true\n", "agent.toml line 2: collect.cpu must be a table"),
        ("[collect.cpu]\n\non = 'yes'\n", "agent.toml line 3: collect.cpu.on must be true or false, not 'yes'"),
        ("[collect.cpu]\ninterval_s = 0\n", "agent.toml line 2: [collect.cpu] interval_s is 0; it must be 0.1 to 86400"),
        ("[collect.cpu]\ntimeout_s = -1\n", "timeout_s is -1"),
        ("[send.loki]\ntenant = 'x'\n", "agent.toml line 2: [send.loki] has no url"),
        ("[send.loki]\nurl = 'loki:3100'\n", "agent.toml line 2: [send.loki] the URL 'loki:3100' must begin with http://"),
        ("[send.kafka]\nurl = 'x'\n", "unknown section [send.kafka]"),
        ("[send.remote_write]\nurl = 'http://u:p@r'\nbearer = 'x'\n", "give a bearer token or a user and password, not both"),
        ("[send.remote_write]\nurl = 'http://r'\nbearer_file = 'none'\n", "none: No such file"),
        ("[send.remote_write]\nurl = 'http://r'\nbearer = '$NONE'\n", "the environment variable NONE is not set"),
        ("[spool]\nmax_disk_bytes = 'much'\n", "agent.toml line 2: spool.max_disk_bytes must be an integer, not 'much'"),
        ("[spool]\nmax_disk_bytes = 1\n", "max_disk_bytes = 1 is too small: it must be at least 65536"),
        ("[collect.cgroups]\nmax_cgroups = 0\n", "agent.toml line 2: [collect.cgroups] max_cgroups = 0 is too small"),
        ("[collect.cuda]\ntimed_one_in = 12\n", "agent.toml line 2: [collect.cuda] timed_one_in is 12; it must be 0, or a power of two up to 1024"),
        ("[collect.cuda]\ntimed_one_in = 2048\n", "timed_one_in is 2048"),
        ("node = 1\n[", "agent.toml is not valid TOML"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_text(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "gpuu"], "--only: unknown source 'gpuu'; did you mean 'gpu'?"),
        (["--trace", "cuda,ncl"], "--trace: unknown library 'ncl'; known: cuda, nccl"),
        (["--listen", "nowhere"], "--listen: 'nowhere' is not HOST:PORT"),
        (["--remote-write", "receiver:9480"], "--remote-write: the URL 'receiver:9480' must begin"),
        (["--config", "/none.toml"], "cannot read /none.toml: No such file or directory"),
    ],
)
def test_an_invalid_flag_is_refused_by_name(arguments: list[str], message: str) -> None:
    status, _, err = run("config", *arguments)
    assert status == 2
    assert message in err


def test_an_unknown_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        ConfigError,
        match=r"TRACKSIDE_AGENT_COLLECT_CPU_INTERVAL: \[collect.cpu\] has no key 'interval'; did you mean 'interval_s'",
    ):
        load(environ={"TRACKSIDE_AGENT_COLLECT_CPU_INTERVAL": "3"})


def test_flags_switch_sources_on_and_off(tmp_path: Path) -> None:
    def enabled_sources(*arguments: str) -> set[str]:
        status, out, err = run("config", "--config", str(write_config(tmp_path, "")), *arguments)
        assert status == 0, err
        return {id_ for id_, table in tomllib.loads(out)["collect"].items() if table["on"]}

    default = {id_ for id_, source in sources().items() if source.on}
    assert enabled_sources("--only", "cpu,memory", "cuda") == {"cpu", "memory", "cuda"}
    assert enabled_sources("--only", "cpu", "--only", "memory") == {"cpu", "memory"}
    assert enabled_sources("--without", "cpu") == default - {"cpu"}
    assert enabled_sources("--trace", "cuda,nccl") == default | {"cuda", "nccl"}
    assert enabled_sources("--controller") == default | {"controller"}
    assert enabled_sources("--only", "cpu", "--controller") == {"cpu", "controller"}


def test_shown_settings_are_toml_with_origins_and_without_secrets(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        "[send.remote_write]\nurl = 'http://r/w?token=hunter2'\nbearer = 'hunter2'\nheaders = { X-Api-Key = 'hunter2', X-Org = 'gpu' }\n"
        "[send.loki]\nurl = 'http://u:hunter2@l'\n",
    )
    status, out, err = run("config", "--config", str(path), "--node", "n7")
    assert status == 0
    assert "hunter2" not in out + err
    document = tomllib.loads(out)
    assert document["agent"]["node"] == "n7"
    assert document["send"]["remote_write"]["headers"] == {"X-Api-Key": "(hidden)", "X-Org": "gpu"}
    assert 'node = "n7"  # --node' in out
    assert f"# {path} line 2" in out
    assert "hunter2" not in repr(load(path))


def test_a_world_readable_file_with_a_secret_causes_a_warning(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[send.loki]\nurl = 'http://l'\nbearer = 'hunter2'\n")
    path.chmod(path.stat().st_mode | stat.S_IROTH)
    status, _, err = run("config", "--config", str(path))
    assert status == 0
    assert (
        f"{path} contains a secret (send.loki.bearer), and every user can read it: use bearer_file or a $VARIABLE"
        in err
    )


def test_trackside_agent_passes_all_arguments_through() -> None:
    for arguments in (["--help"], ["run", "--help"], ["config", "--node", "n9"]):
        result = CliRunner().invoke(trackside, ["agent", *arguments])
        assert result.exit_code == 0, result.output
        assert "Usage: trackside agent" in result.output or 'node = "n9"' in result.output
    assert CliRunner().invoke(trackside, ["agent", "config", "--nod-e", "x"]).exit_code == 2


def test_the_agents_command_line_imports_only_its_own_dependencies() -> None:
    code = (
        "import sys, trackside.agent.__main__, trackside.agent.source\n"
        "trackside.agent.source.sources()\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded_packages = set(result.stdout.split())
    assert not loaded_packages & {
        "numpy",
        "duckdb",
        "click",
        "rich",
        "zstandard",
        "starlette",
        "sqlalchemy",
        "pynvml",
    }
    assert {"msgspec", "urllib3"} <= loaded_packages
