"""Diagnosing a job by its id alone, from Slurm (stand-in commands), output files, a journal, the embedded store."""

from __future__ import annotations

import getpass
import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.stores.embedded.runs import SACCT, T0, TRACEBACK, sacct, scrape, steps, write
from trackside.cli import main
from trackside.errors import NothingReadable
from trackside.evidence import Frame
from trackside.finding import Verdict
from trackside.ingest import ingest
from trackside.query import Query
from trackside.runs.resolve import NoSuchRun
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.operations import _problem
from trackside.session import SiteRequest, open_session
from trackside.site.config import load


def program(path: Path, script: str) -> None:
    """Write a command that runs these lines of shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def owned(table: str) -> str:
    """A table of sacct with the current user as owner of the jobs."""
    head, *rows = table.splitlines()
    return "\n".join([f"{head}|User", *(f"{row}|{getpass.getuser()}" for row in rows)]) + "\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the commands of a cluster, the output of one job, and settings that name them."""
    out = write(tmp_path / "work", {"slurm-41.out": steps(5) + TRACEBACK.format(module="apex")})
    (tmp_path / "rows").write_text(owned(SACCT + sacct("41", folder=str(out))))
    program(
        tmp_path / "bin" / "sacct",
        f"""case "$*" in
      --version) echo slurm 22.05.8;;
      --helpformat) echo {SACCT.strip().replace("|", " ")} User;;
      *) cat {tmp_path}/rows;;
    esac""",
    )
    for name in ("scontrol", "squeue"):
        program(tmp_path / "bin" / name, 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    (tmp_path / "trackside.toml").write_text(f'[slurm]\nbin = "{tmp_path}/bin"\n')
    return tmp_path


def diagnose(site: Path, *arguments: str, job: str = "41") -> Result:
    return CliRunner().invoke(
        main, ["diagnose", "--job", job, "--config", str(site / "trackside.toml"), *arguments], env={"HOME": str(site)}
    )


def test_a_job_is_found_by_its_id_alone(site: Path) -> None:
    result = diagnose(site, "--json")
    assert result.exit_code == 0, result.stderr
    doc = json.loads(result.stdout)
    assert doc["primary"]["family"] == "H2"
    assert doc["run"]["disposition"] == "FAILED"
    assert doc["asked"] == ["slurm"]
    (site / "verdict.json").write_text(result.stdout)
    again = CliRunner().invoke(main, ["verify", str(site / "verdict.json"), "--config", str(site / "trackside.toml")])
    assert again.exit_code == 0, again.output
    without = CliRunner().invoke(
        main, ["verify", str(site / "verdict.json"), "--slurm", "off", "--metrics-url", "http://127.0.0.1:9"]
    )
    assert "was made with slurm, which is not configured here" in without.stderr


def test_the_page_shows_the_lines_around_a_cited_line(site: Path) -> None:
    assert diagnose(site, "--html", str(site / "page.html")).exit_code == 0
    page = (site / "page.html").read_text()
    assert "Traceback (most recent call last)" in page, "the lines before the cited line"


def test_an_unknown_job_is_not_found(site: Path) -> None:
    (site / "rows").write_text(SACCT)
    result = diagnose(site, job="4711")
    assert result.exit_code == 3
    assert "job 4711 not found" in result.stderr
    assert "accounting" in result.stderr


def test_servers_get_few_requests_for_a_job_that_slurm_does_not_know(site: Path) -> None:
    (site / "rows").write_text(SACCT)
    with answering(site) as (url, paths):
        result = diagnose(site, "--metrics-url", url, "--logs-url", f"loki={url}", job="4711")
    assert result.exit_code == 3
    assert "job 4711 not found" in result.stderr
    assert "no series with its id" in result.stderr
    assert "holds no stream of job 4711" in result.stderr
    assert not [path for path in paths if path.endswith("query_range")]
    assert len(paths) <= 8


def test_a_job_that_slurm_forgot_is_diagnosed_from_servers(site: Path) -> None:
    (site / "rows").write_text(SACCT)
    with answering(site, "4711") as (url, paths):
        result = diagnose(site, "--metrics-url", url, job="4711")
    assert "job 4711 not found" not in result.stderr
    assert [path for path in paths if path.endswith("/query")]


def test_a_dead_server_knows_no_job(site: Path) -> None:
    (site / "rows").write_text(SACCT)
    result = diagnose(site, "--metrics-url", "http://127.0.0.1:1", job="4711")
    assert result.exit_code == 3
    assert "job 4711 not found" in result.stderr
    assert "prometheus http://127.0.0.1:1 cannot be reached (connection refused; is it running?)" in result.stderr


def test_a_job_that_no_source_can_look_up_gets_a_sentence_per_reason(site: Path) -> None:
    servers = "--metrics-url", "http://127.0.0.1:1", "--logs-url", "loki=http://127.0.0.1:2"
    assert diagnose(site, "--slurm", "off", *servers).stderr == (
        "trackside: cannot look up job 41. Loki http://127.0.0.1:2 and prometheus http://127.0.0.1:1 cannot be reached "
        "(connection refused; is it running?). Start the servers or correct their URLs, or give the job's files\n"
    )


@contextmanager
def answering(site: Path, job: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server of metrics and logs with the series of one job, if any: (URL, requested paths)."""
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "hpc_job": job, "Hostname": "gpu017", "gpu": "0"}
    answers: dict[str, object] = {
        "values": ["DCGM_FI_DEV_GPU_UTIL"],
        "labels": sorted(labels),
        "series": [labels] if job else [],
    }
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            paths.append(path)
            data = answers.get(path.rpartition("/")[2], {"resultType": "matrix", "result": []})
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


def test_the_canceling_user_comes_from_the_record_that_has_it(site: Path) -> None:
    (site / "rows").write_text(
        "JobID|State|Start|End|User|UID\n41|CANCELLED by 0|2026-03-02T08:00:00|2026-03-02T08:10:00|alice|1001\n"
    )
    scontrol_output = (
        "JobId=41 JobName=lm UserId=alice(1001) JobState=CANCELLED Reason=None SubmitTime=2026-03-02T07:59:00"
        " StartTime=2026-03-02T08:00:00 EndTime=2026-03-02T08:10:00 NumNodes=1 NodeList=gpu017\n"
    )
    (site / "job").write_text(scontrol_output)
    program(site / "bin" / "scontrol", f'case "$*" in *job*41*) cat {site}/job;; *) exit 1;; esac')
    doc = json.loads(diagnose(site, "--json").stdout)
    claims = {claim["text"]: claim["cites"] for claim in doc["shows"]}
    assert doc["primary"]["family"] == "H1"
    where = doc["cites"][claims["Canceled by uid 0"][0]]["where"]
    assert where.startswith("sacct")
    assert "The job was submitted by uid 1001" in claims


@pytest.mark.parametrize(
    ("job", "message"), [("rm -rf", "is not a Slurm job id"), ("41[1-3]", "is not a Slurm job id")]
)
def test_an_invalid_job_id_is_refused(site: Path, job: str, message: str) -> None:
    result = diagnose(site, job=job)
    assert result.exit_code == 2
    assert message in result.stderr


def test_failed_accounting_is_not_reported_as_absence(site: Path) -> None:
    program(site / "bin" / "sacct", "echo 'sacct: error: slurm_persist_conn_open: Connection refused' >&2; exit 1")
    result = diagnose(site, "--json", str(site / "work"))
    doc = json.loads(result.stdout)
    assert any("sacct" in claim["text"] and "Connection refused" in claim["text"] for claim in doc["preflight"])
    unsure = {entry["family"]: entry["missing"] for entry in doc["unknown"]}
    assert any("unable to check" in reason for reasons in unsure.values() for reason in reasons)


def test_a_store_and_slurm_are_combined(site: Path) -> None:
    metrics = {"gpu.prom": "".join(scrape("gpu017", second, 91.0) for second in range(0, 600, 15))}
    ingest([write(site / "metrics", metrics)], site / "store")
    store_only = CliRunner().invoke(main, ["diagnose", "--store", str(site / "store"), "--json"])
    assert json.loads(store_only.stdout)["run"]["disposition"] is None
    result = diagnose(site, "--store", str(site / "store"), "--json")
    assert result.exit_code == 0, result.stderr
    doc = json.loads(result.stdout)
    assert (doc["run"]["disposition"], doc["run"]["gpus"]) == ("FAILED", ["gpu017:0", "gpu017:1"])
    assert doc["paths"] == [str(site / "store")]
    (site / "verdict.json").write_text(result.stdout)
    again = CliRunner().invoke(main, ["verify", str(site / "verdict.json"), "--config", str(site / "trackside.toml")])
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("sent", [True, False])
def test_output_that_was_sent_to_the_store_is_not_missing(site: Path, sent: bool) -> None:
    output = (site / "work" / "slurm-41.out").rename(site / "elsewhere").read_text()
    lines = "".join(
        f"2026-11-21T10:00:00.{index:09d}Z stdout F {line}\n" for index, line in enumerate(output.splitlines())
    )
    job = "41" if sent else "40"  # output of another job does not count
    received = write(site / "took", {f"job-{job}/slurm-{job}.out@gpu017.log": lines})
    ingest([received], site / "store")
    doc = json.loads(diagnose(site, "--store", str(site / "store"), "--json").stdout)
    row = next(row for row in doc["inputs"] if row["path"].endswith("work/slurm-41.out"))
    assert "it is not on this machine" in row["note"]
    gaps = [reason for entry in doc["unknown"] for reason in entry["missing"] if "not on this machine" in reason]
    assert bool(gaps) is not sent


def test_output_on_disk_and_in_the_store_counts_once(site: Path) -> None:
    output = (site / "work" / "slurm-41.out").read_text()
    lines = "".join(
        f"2026-11-21T10:00:00.{index:09d}Z stdout F {line}\n" for index, line in enumerate(output.splitlines())
    )
    ingest([write(site / "took", {"job-41/slurm-41.out@gpu017.log": lines})], site / "store")
    disk_only = json.loads(diagnose(site, "--json").stdout)
    both = json.loads(diagnose(site, "--store", str(site / "store"), "--json").stdout)
    assert both["progress"] == disk_only["progress"]
    assert both["progress"]["points"] > 0
    assert [row["path"] for row in both["inputs"] if "@gpu017" in row["path"]] == []


def test_a_store_without_the_job_does_not_end_the_diagnosis(site: Path) -> None:
    metrics = {"gpu.prom": "".join(scrape("gpu099", second, 91.0) for second in range(0, 600, 15)), "a.out": "x\n"}
    ingest([write(site / "metrics", metrics)], site / "store")
    doc = json.loads(diagnose(site, "--store", str(site / "store"), "--json").stdout)
    assert doc["primary"]["family"] == "H2"


def test_the_journal_of_the_nodes_is_read(site: Path) -> None:
    entry = {
        "__REALTIME_TIMESTAMP": str((T0 + 300) * 1_000_000), "_HOSTNAME": "gpu017", "_TRANSPORT": "kernel",
        "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
    }  # fmt: skip
    (site / "entries").write_text(json.dumps(entry) + "\n")
    program(site / "bin" / "journalctl", f'case "$*" in *--field*) echo gpu017;; *) cat {site}/entries;; esac')
    config = site / "trackside.toml"
    config.write_text(config.read_text() + f'[journal]\ncommand = "{site}/bin/journalctl"\n')
    doc = json.loads(diagnose(site, "--json").stdout)
    assert (doc["primary"]["family"], doc["primary"]["nodes"]) == ("B2", ["gpu017"])
    assert doc["asked"] == ["slurm", "journalctl"]


def test_a_verdict_is_shown_even_if_the_archive_is_down(site: Path) -> None:
    archived = diagnose(site, "--archive", f"sqlite:///{site}/verdicts.db")
    assert archived.exit_code == 0
    assert archived.stderr == ""
    from trackside.stores.metadata.archive import Archive
    from trackside.stores.metadata.rows import Filters

    with Archive.open(f"sqlite:///{site}/verdicts.db") as archive:
        assert [run.job for run in archive.runs(Filters()).runs] == ["41"]
    unarchived = diagnose(site, "--archive", "postgresql+psycopg://u:secret@127.0.0.1:1/none")
    assert unarchived.exit_code == 0
    assert "not archived" in unarchived.stderr
    assert "secret" not in unarchived.stderr


def test_watching_a_job_that_has_ended_gives_its_verdict(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.watch.follow.SETTLE_S", 0.0)
    result = diagnose(site, "--watch", "--interval", "1", "--exit-code")
    assert result.exit_code == 10
    assert result.stdout.count("H2 application-exception") >= 1


def test_slurm_that_was_asked_for_without_a_job_is_named_as_missing(site: Path) -> None:
    arguments = ["diagnose", str(site / "work"), "--slurm", "auto", "-v"]
    result = CliRunner().invoke(main, arguments, env={"PATH": str(site / "bin")})
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "Slurm gave no complete answer" in words
    assert "slurm: refused: not queried, because no job was named: give its id with --job" in words


def test_files_alone_query_no_site(site: Path) -> None:
    result = CliRunner().invoke(main, ["diagnose", str(site / "work")], env={"PATH": str(site / "bin")})
    assert "sacct" not in result.output
    nothing = CliRunner().invoke(main, ["diagnose", "--job", "41"], env={"PATH": "/nowhere", "HOME": str(site)})
    assert nothing.exit_code == 3
    assert "no source to query: no Slurm commands on this machine" in nothing.stderr
    off = CliRunner().invoke(main, ["diagnose", "--job", "41", "--slurm", "off"], env={"PATH": str(site / "bin")})
    assert "no source to query: Slurm is off" in off.stderr


def test_a_pending_job_shows_its_reason(site: Path) -> None:
    scontrol_output = (
        "JobId=43 JobName=lm UserId=alice(1001) JobState=PENDING Reason=Dependency Dependency=afterok:41(unfulfilled)"
        " SubmitTime=2026-03-02T09:00:00 StartTime=Unknown NumNodes=1 NodeList=\n"
    )
    (site / "job").write_text(scontrol_output)
    program(site / "bin" / "scontrol", f'case "$*" in *43*) cat {site}/job;; *) exit 1;; esac')
    (site / "rows").write_text(SACCT)
    doc = json.loads(diagnose(site, "--json", job="43").stdout)
    texts = [claim["text"] for claim in doc["shows"]]
    assert "The job has not started: PENDING, reason Dependency" in texts
    assert "Meaning: a job that it depends on has not ended yet" in texts
    assert "Waiting for other jobs: afterok:41(unfulfilled)" in texts
    assert (doc["primary"]["variant"], doc["primary"]["culprit"]) == ("pending", "none")
    assert (doc["run"]["end"], doc["run"]["as_of"]) == (None, None)


def test_the_api_diagnoses_from_store_and_site(site: Path) -> None:
    metrics = {"gpu.prom": "".join(scrape("gpu017", second, 91.0) for second in range(0, 600, 15))}
    ingest([write(site / "metrics", metrics)], site / "store")
    calls: list[int] = []
    diagnoser = Diagnoser(site / "store", lambda: calls.append(1) or (), load(site / "trackside.toml", environ={}))
    assert diagnoser.queried == ("slurm",)
    with diagnoser.session("41") as session:
        assert session.verdict().family == "H2"
    with diagnoser.session("41") as session:
        answer = session.ask(Query.parse("record(job)"))
        assert isinstance(answer, Frame)
        assert [row.get("state") for row in answer.records] == ["FAILED"]
    with pytest.raises(NoSuchRun), diagnoser.session("nothing of Slurm's"):
        pass
    with pytest.raises(NothingReadable) as unknown, diagnoser.session("4711"):
        pass
    assert _problem(unknown.value, "x").status == 404
    assert len(calls) == 4


@pytest.mark.parametrize("name", ["r-%j-%t.log", "%x.%t.txt"])
@pytest.mark.parametrize("stored", [True, False])
def test_the_output_of_a_guessed_parent_is_not_the_jobs_own(site: Path, name: str, stored: bool) -> None:
    """Slurm 22.05 records no output paths: only the submit lines show which job wrote a file."""
    rows, out = "", site / "work"
    for day, job in enumerate(("2", "3"), 2):
        folder = out if "%j" in name else out / job
        line = f"sbatch --output={folder}/{name} train.sh"
        rows += f"{sacct(job, day=day, folder=str(out)).strip()}|{line}|{getpass.getuser()}\n"
    (site / "rows").write_text(f"{SACCT.strip()}|SubmitLine|User\n{rows}")
    path = site / "bin" / "sacct"
    path.write_text(path.read_text().replace(" User;;", " SubmitLine User;;"))
    files = {"r-2-0.log": steps(100), "r-3-0.log": steps(3)}
    if "%j" not in name:
        files = {"2/lm.0.txt": steps(100), "3/lm.0.txt": steps(3)}
    write(out, files)
    write(site / "old", {"sacct.txt": SACCT + sacct("77")})
    ingest([site / "old"], site / "store")
    parents, own_path = (str(out / file).lstrip("/") for file in sorted(files))

    def verdict_of_job() -> Verdict:
        settings = load(str(site / "trackside.toml"))
        with open_session(SiteRequest(settings, "3", store=str(site / "store") if stored else "")) as session:
            return session.verdict()

    run = verdict_of_job().run
    assert run.log_paths == (own_path,)
    assert run.parent_log_paths in ((), (parents,))
    Path(f"/{own_path}").unlink()
    run = verdict_of_job().run
    assert run.log_paths == (), "the parent's output is not used even if there is no other"
