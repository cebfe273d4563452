"""What a site installs for the receiver: unit, user, settings and alert rules agree with the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services import missing, program
from trackside.catalog.metrics import METRICS
from trackside.serve import own_metrics
from trackside.site.config import load

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "packaging" / "systemd"
UNIT = SYSTEMD / "trackside-receiver.service"
RULES = ROOT / "packaging" / "prometheus" / "trackside-alerts.yml"
OWN_METRICS = re.findall(
    r'^        \("(\w+)", "(?:counter|gauge)"', Path(own_metrics.__file__).read_text(), re.MULTILINE
)


def test_the_unit_agrees_with_user_and_settings() -> None:
    unit = UNIT.read_text()
    config = load(str(SYSTEMD / "trackside.toml"))
    assert config.store == "/var/lib/" + re.findall(r"^StateDirectory=(.+)", unit, re.MULTILINE)[0]
    [user] = re.findall(r"^User=(.+)", unit, re.MULTILINE)
    assert user in (SYSTEMD / "trackside-receiver.sysusers.conf").read_text().split()


def test_the_commented_settings_are_known(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = )", r"\1", (SYSTEMD / "trackside.toml").read_text(), flags=re.MULTILINE)
    path = tmp_path / "trackside.toml"
    path.write_text(text)
    assert load(str(path)).serve.certificate


def test_alerts_and_page_name_the_metrics() -> None:
    assert len(OWN_METRICS) > 20
    known = {f"trackside_receiver_{name}" for name in OWN_METRICS} | set(METRICS)
    expressions = re.findall(r"^ +expr: (.+)", RULES.read_text(), re.MULTILINE)
    names = [set(re.findall(r"trackside_\w+", expression)) or {"up"} for expression in expressions]
    assert all(group <= known | {"up"} for group in names)  # "up" is Prometheus's own
    assert "trackside_send_last_success_time" not in set().union(*names)  # it also ages while there is nothing to send
    page = (ROOT / "docs" / "receiver.md").read_text()
    assert not [name for name in OWN_METRICS if f"`{name}`" not in page]


@pytest.mark.service
@pytest.mark.parametrize("arguments", [["verify", "--man=no"], ["security", "--offline=true", "--threshold=25"]])
def test_systemd_accepts_the_unit(arguments: list[str], tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze", "systemd (apt-get install systemd)")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/trackside/bin/trackside", "/bin/true"))
    result = subprocess.run(
        [str(analyze), *arguments, str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    messages = [line for line in result.stderr.splitlines() if "trackside" in line]
    assert (result.returncode, messages) == (0, []), result.stderr


@pytest.mark.service
def test_prometheus_accepts_the_alert_rules() -> None:
    command = [program("promtool", "prometheus"), "check", "rules", str(RULES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
