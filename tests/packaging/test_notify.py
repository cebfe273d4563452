"""packaging/slurm/notify.sh puts a verdict into the job's comment and mails it, with Slurm's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import trackside

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "slurm" / "notify.sh"
RECORD = """#!/bin/sh
{ echo "$(basename "$0")"; for argument in "$@"; do echo "  $argument"; done; } >>"$CALLS"
"""
PROGRAMS = {
    "sacctmgr": RECORD,
    "sacct": "#!/bin/sh\necho alice\n",
    "scontrol": "#!/bin/sh\necho 'MailProg                = mail-of-slurm'\n",
    "mail-of-slurm": RECORD + 'sed "s/^/  | /" >>"$CALLS"\n',
}
FAULT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB.\n"
)


def notified(tmp_path: Path, log: str, **settings: str) -> str:
    """Run the script on the verdict on a log; returns the calls of Slurm's programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "train.log").write_text(log)
    verdict = trackside.diagnose(tmp_path / "train.log")
    (tmp_path / "4242.json").write_text(trackside.to_json(verdict))
    (tmp_path / "4242.txt").write_text('CUDA out of memory: "no room". Owner: the job.\nB1, established.\n')
    calls = tmp_path / "calls"
    calls.touch()
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls), "TRACKSIDE_EPILOG_CONF": "/dev/null"}
    result = subprocess.run(
        [str(SCRIPT), str(tmp_path / "4242.json")], env={**environ, **settings}, capture_output=True, check=False
    )
    assert result.stderr == b""
    return calls.read_text()


COMMENT = "Trackside: CUDA out of memory: 'no room'. Owner: the job. B1, established. "


def test_the_verdict_becomes_the_comment_of_the_job(tmp_path: Path) -> None:
    assert notified(tmp_path, FAULT) == (
        f"sacctmgr\n  --immediate\n  modify\n  job\n  where\n  jobid=4242\n  set\n  admincomment={COMMENT}\n"
    )


@pytest.mark.parametrize(
    ("mail", "log", "expected"),
    [("faults", FAULT, True), ("faults", "nothing\n", False), ("all", "nothing\n", True), ("no", FAULT, False)],
)
def test_the_user_gets_a_mail(mail: str, log: str, expected: bool, tmp_path: Path) -> None:
    calls = notified(tmp_path, log, TRACKSIDE_MAIL=mail, TRACKSIDE_COMMENT="no", TRACKSIDE_MAIL_DOMAIN="example.org")
    text = (
        'mail-of-slurm\n  -s\n  Job 4242: CUDA out of memory: "no room"\n  alice@example.org\n'
        '  | CUDA out of memory: "no room". Owner: the job.\n  | B1, established.\n'
    )
    assert calls == (text if expected else "")
