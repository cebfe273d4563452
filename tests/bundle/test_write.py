"""A run in one file: its content, that it gives the same verdict, and that any change in it is detected."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trackside
from tools.cases import Case, scenarios
from trackside.bundle import parts, slicing
from trackside.bundle.differences import differences
from trackside.bundle.parts import BundleRefused
from trackside.bundle.samples import SampleFilter, export
from trackside.bundle.write import BundleOptions, write
from trackside.catalog.metrics import METRICS
from trackside.cli import main
from trackside.finding import Verdict
from trackside.model import Position, Samples, Series
from trackside.read.bundle import (
    DIGEST_LENGTH,
    MANIFEST,
    SEAL,
    Bundle,
    BundleManifest,
    DamagedBundle,
    open_bundle,
    recorded_job_and_time,
)
from trackside.read.detect import formats, read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.walk import walk
from trackside.session import Session
from trackside.session.paths import load
from trackside.show.document import document, encode

CREATED = "2026-11-21T08:00:00Z"
WRITTEN = [case for case in scenarios() if case.source != "simulated"]
MEASURED = [case for case in scenarios() if case.source == "simulated"]
CHOSEN = [*WRITTEN[::14], *MEASURED[:1]]
LOG = (
    "".join(f"step {n} loss {3 - n / 900:.3f}\n" for n in range(900))
    + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def write_bundle(folder: Path, out: Path, as_of: float | None = None, **options: object) -> Verdict:
    """Write a bundle of a folder; returns the verdict on the folder."""
    session = Session.of(load([folder]), as_of)
    write(session, [str(folder)], BundleOptions(out=str(out), created=CREATED, **options))  # type: ignore[arg-type]
    return session.verdict()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def write_run(folder: Path) -> Path:
    """Write a run with a log, an empty file and an unreadable file."""
    folder.mkdir()
    (folder / "train.log").write_text(LOG)
    (folder / "empty.out").write_bytes(b"")
    (folder / "weights.bin").write_bytes(b"\x93\0\1\2" * 400)
    return folder


@pytest.fixture(scope="module")
def bundle_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bundle of such a run, as bytes."""
    folder = tmp_path_factory.mktemp("made")
    write_bundle(write_run(folder / "run"), folder / "run.tsb")
    return (folder / "run.tsb").read_bytes()


@pytest.fixture
def bundle(bundle_bytes: bytes, tmp_path: Path) -> Path:
    (tmp_path / "run.tsb").write_bytes(bundle_bytes)
    return tmp_path / "run.tsb"


def run_cli(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def manifest_of(path: Path) -> BundleManifest:
    with open_bundle(path) as bundle:
        return bundle.manifest


class TestScenarios:
    """A sample of all kinds of scenarios; those with metrics are slow."""

    @pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
    def test_a_bundle_gives_the_same_verdict(self, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whole: the same document to the byte. Redacted and sliced: the same except names, and its citations hold."""
        monkeypatch.setattr(parts, "MAX_WHOLE_BYTES", 4000)
        monkeypatch.setattr(slicing, "END_LINES", 20)
        with case.inputs() as folder:
            before = write_bundle(folder, tmp_path / "whole.tsb", job=case.expected.get("job"))
            write_bundle(folder, tmp_path / "less.tsb", job=case.expected.get("job"), sliced=True, redacted=True)
        whole = encode(document(trackside.diagnose(tmp_path / "whole.tsb")))
        assert whole == encode(document(before))
        less = encode(document(trackside.diagnose(tmp_path / "less.tsb")))
        for name, verdict in (("whole.tsb", whole), ("less.tsb", less)):
            with open_bundle(tmp_path / name) as bundle:
                bundle.check()
                assert bundle.verdict() == verdict
        assert run_cli("verify", tmp_path / "less.tsb").exit_code == 0


class TestRedacted:
    def test_redaction_reports_replacements_on_stderr_and_asks_for_a_review(self, run: Path, tmp_path: Path) -> None:
        (run / "env.out").write_text("HF_TOKEN=abc12345\nUSER=jdoe\n" + LOG)
        result = run_cli("bundle", run, "-o", tmp_path / "red.tsb", "--redact")
        assert result.exit_code == 0, result.output
        assert "replaced: 1 tokens, keys and passwords, 1 user name" in result.stderr
        assert "left out: weights.bin" in result.stderr
        assert "Read the files of the bundle before you send it" in result.stderr
        assert "replaced:" not in result.stdout
        assert "Read the files" not in run_cli("bundle", run, "-o", tmp_path / "plain.tsb").stderr


class TestContent:
    def test_a_bundle_is_a_plain_zip(self, bundle: Path) -> None:
        with zipfile.ZipFile(bundle) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == ["mimetype", "inputs/empty.out", "inputs/train.log", "verdict.json", MANIFEST]
            assert archive.read("inputs/train.log").decode() == LOG
            listing = json.loads(archive.read(MANIFEST))
            for member in listing["members"]:
                data = archive.read(member["name"])
                assert (len(data), hashlib.sha256(data).hexdigest()) == (member["size"], member["sha256"])
            assert listing["verdict_sha256"] == hashlib.sha256(archive.read("verdict.json")).hexdigest()

    def test_an_unreadable_input_is_left_out_and_listed(self, bundle: Path) -> None:
        (unread,) = [row for row in manifest_of(bundle).inputs if row.member is None]
        assert unread.path == "weights.bin"
        assert "unknown binary format" in unread.because

    def test_equal_inputs_give_equal_bytes(self, run: Path, tmp_path: Path) -> None:
        for name in ("one.tsb", "other.tsb"):
            write_bundle(run, tmp_path / name)
        assert (tmp_path / "one.tsb").read_bytes() == (tmp_path / "other.tsb").read_bytes()

    def test_the_time_of_an_input_is_kept(self, run: Path, tmp_path: Path) -> None:
        os.utime(run / "train.log", (1_700_000_000, 1_700_000_000.25))
        write_bundle(run, tmp_path / "run.tsb")
        sources = {source.path: source for source in walk([tmp_path / "run.tsb"]) if isinstance(source, InputSource)}
        assert sources["train.log"].modified == 1_700_000_000.25

    def test_job_and_time_are_recorded(self, run: Path, tmp_path: Path) -> None:
        write_bundle(run, tmp_path / "run.tsb", as_of=1_800_000_000.0, job=None)
        assert recorded_job_and_time(tmp_path / "run.tsb") == (None, 1_800_000_000.0)
        assert load([tmp_path / "run.tsb"]).as_of == 1_800_000_000.0

    def test_a_bundle_inside_a_folder_is_refused(self, bundle: Path, run: Path) -> None:
        bundle.rename(run / "run.tsb")
        (row,) = [row for row in load([run]).inputs if row.path == "run.tsb"]
        assert row.status == "refused"
        assert "pass its own path" in row.note

    def test_paths_of_a_bundle_among_other_inputs_are_prefixed(self, bundle: Path, run: Path) -> None:
        paths = [source.path for source in walk([bundle, run / "weights.bin"])]
        assert "run.tsb!train.log" in paths

    def test_archives_are_unpacked_only_for_redaction(self, run: Path, tmp_path: Path) -> None:
        packed = tmp_path / "all.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(run / "train.log", "logs/train.log")
        write_bundle(packed, tmp_path / "whole.tsb")
        write_bundle(packed, tmp_path / "redacted.tsb", redacted=True)
        assert manifest_of(tmp_path / "whole.tsb").members[0].name == "inputs/all.zip"
        assert manifest_of(tmp_path / "redacted.tsb").members[0].name == "inputs/all.zip!/logs/train.log".replace(
            "!/", "!"
        )

    def test_a_bundle_can_be_redacted_later(self, bundle: Path, tmp_path: Path) -> None:
        case = Session.of(load([bundle]))
        with pytest.raises(BundleRefused, match="already a bundle"):
            write(case, [str(bundle)], BundleOptions(out=str(tmp_path / "two.tsb"), created=CREATED))
        write(case, [str(bundle)], BundleOptions(out=str(tmp_path / "two.tsb"), created=CREATED, redacted=True))
        assert not differences(case.verdict(), trackside.diagnose(tmp_path / "two.tsb"))
        assert not list(tmp_path.glob(".bundle-*"))


class TestSlice:
    def big(self, folder: Path) -> None:
        noise = "".join(f"debug: worker {n * 7919 % 1000} fetched batch {n}\n" for n in range(60_000))
        (folder / "train.log").write_text(noise + LOG + noise)

    def test_a_large_log_is_sliced_and_marked(self, run: Path, tmp_path: Path) -> None:
        self.big(run)
        before = write_bundle(run, tmp_path / "run.tsb", sliced=True)
        assert not differences(before, trackside.diagnose(tmp_path / "run.tsb"))
        with zipfile.ZipFile(tmp_path / "run.tsb") as archive:
            text = archive.read("inputs/train.log").decode()
        assert len(text) < 100_000
        assert "lines left out ...]\n" in text
        assert "OutOfMemoryError" in text
        left_out_count = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("[... "))
        kept_count = sum(not line.startswith("[... ") for line in text.splitlines())
        assert left_out_count + kept_count == 120_000 + LOG.count("\n")
        (excerpt,) = [row.excerpt for row in manifest_of(tmp_path / "run.tsb").inputs if row.excerpt]
        assert excerpt.startswith(f"{kept_count:,} of {left_out_count + kept_count:,} lines")

    def test_a_slice_with_another_verdict_is_not_used(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.big(run)
        monkeypatch.setattr("trackside.bundle.write.parts_to_keep", lambda rows, queries: {})
        write_bundle(run, tmp_path / "run.tsb", sliced=True)
        manifest = manifest_of(tmp_path / "run.tsb")
        assert not manifest.sliced
        assert "would give a different verdict" in manifest.notes[0]
        assert [member.size for member in manifest.members if member.name == "inputs/train.log"] == [
            (run / "train.log").stat().st_size
        ]

    @given(st.lists(st.integers(0, 3000), max_size=40), st.integers(1, 3000))
    def test_kept_lines_keep_their_order(self, selected: list[int], count: int) -> None:
        lines = [f"line {n}\n".encode() for n in range(1, count + 1)]
        kept_parts = slicing.FileParts(sorted((number, number) for number in set(selected)))
        cut = slicing.Slice(io.BytesIO(b"".join(lines)), kept_parts)
        number, line_numbers = 0, set()
        for text in cut:
            if text.startswith(b"[... "):
                number += int(text.split()[1])
            else:
                number += 1
                assert text == lines[number - 1]
                line_numbers.add(number)
        assert number == count == cut.line_count
        assert {number for number in selected if 1 <= number <= count} <= line_numbers
        assert len(line_numbers) == cut.kept_lines

    def test_every_metric_is_read_back_as_it_was(self) -> None:
        """The canonical names in an export are read as the same metric, with the same labels and values."""
        common = {"node": "n1", "gpu": "3"}
        listed = [
            Series(
                name,
                tuple(sorted(({} if name.startswith("host_") else common | {"node": "n1"}).items())),
                Position("x", 1),
            )
            for name in METRICS
        ]
        listed = [replace(series, labels=series.labels or (("node", "n1"),)) for series in listed]
        import numpy as np

        values = np.array([0.5 if METRICS[series.metric].unit == "ratio" else 1.0 for series in listed])
        block = Samples(listed, np.arange(len(listed), dtype=np.int32), np.full(len(listed), 1_700_000_000_000), values)
        from trackside.bundle.samples import SampleWriter

        file = io.BytesIO()
        SampleWriter(file, SampleFilter()).samples(block)
        sink = CollectingSink()
        data = file.getvalue()
        row = read_source(InputSource("x.jsonl", data[: 64 << 10], io.BytesIO(data), len(data)), sink)
        assert row.format == "victoria-export"
        read_back = {
            block.series[index].metric: value
            for block in sink.blocks
            for index, value in zip(block.index, block.values, strict=True)
        }
        assert read_back == dict(zip([series.metric for series in listed], values.tolist(), strict=True))

    @pytest.mark.parametrize("nodes", [("n1", "n2"), ("10.0.0.1", "10.0.0.2")])
    def test_samples_of_other_nodes_and_times_are_left_out(self, nodes: tuple[str, str]) -> None:
        text = "".join(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="{node}"}} 50 {1_700_000_000_000 + minute * 60_000}\n'
            for node in nodes
            for minute in range(100)
        ).encode()
        source = InputSource("dcgm.prom", text, io.BytesIO(text), len(text))
        cut = export(source, SampleFilter(frozenset({nodes[0]}), 1_700_000_000_000, 1_700_000_540_000))
        assert (cut.written_count, cut.left_out_count) == (10, 190)
        rows = [json.loads(line) for line in b"".join(cut.lines()).splitlines()]
        assert {row["metric"]["node"] for row in rows} == {nodes[0]}


class TestDamage:
    """Any change after writing is refused, and the message names it."""

    def repacked(
        self, bundle: Path, change: Callable[[dict[str, bytes]], object], seal: bool = True, link: str = ""
    ) -> Path:
        """The bundle with its members changed, rewritten by another program that follows the format."""
        with zipfile.ZipFile(bundle) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        change(members)
        with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = (stat.S_IFLNK if name == link else stat.S_IFREG) << 16
                archive.writestr(info, data, zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED)
            archive.comment = SEAL + b"0" * DIGEST_LENGTH
        if seal:
            data = bundle.read_bytes()[:-DIGEST_LENGTH]
            bundle.write_bytes(data + hashlib.sha256(data).hexdigest().encode())
        return bundle

    def refused(self, bundle: Path, reason: str) -> None:
        (row,) = [
            read_source(source, CollectingSink()) if isinstance(source, InputSource) else source
            for source in walk([bundle])
        ]
        assert row.status == "refused"
        assert reason in row.note
        response = run_cli("diagnose", bundle)
        assert response.exit_code == 3
        assert "changed after it was written" in response.output
        response = run_cli("bundle", "--check", bundle)
        assert (response.exit_code, reason in response.output) == (1, True)

    def test_a_changed_member_is_refused(self, bundle: Path) -> None:
        self.refused(
            self.repacked(bundle, lambda m: m.update({"inputs/train.log": m["inputs/train.log"].replace(b"900", b"901")}
                                                     if b"900" in m["inputs/train.log"] else {"inputs/train.log": LOG.replace("3", "4").encode()})),
            "inputs/train.log: changed",
        )  # fmt: skip

    def test_a_missing_member_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: m.pop("inputs/train.log")), "inputs/train.log: missing")

    def test_an_added_member_is_refused(self, bundle: Path) -> None:
        self.refused(
            self.repacked(bundle, lambda m: m.update({"inputs/more.log": b"x"})), "inputs/more.log: not listed in"
        )

    def test_a_changed_verdict_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: m.update({"verdict.json": b"{}"})), "verdict.json: changed")

    def test_a_missing_manifest_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: m.pop(MANIFEST)), "manifest.json is missing")

    def test_an_invalid_manifest_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: m.update({MANIFEST: b"[" * 100_000})), "manifest.json")

    def test_a_newer_manifest_version_is_refused(self, bundle: Path) -> None:
        later = lambda m: m.update({MANIFEST: m[MANIFEST].replace(b"bundle/1", b"bundle/9")})  # noqa: E731
        self.refused(self.repacked(bundle, later), "reads trackside.bundle/1")

    def test_a_member_name_outside_the_bundle_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: m.update({"inputs/../../x": b"x"})), "points outside")

    def test_a_link_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: None, link="inputs/train.log"), "inputs/train.log: a link")

    def test_a_zip_bomb_is_refused(self, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Eight MiB of zeros with correct checksums are too large for such a small file."""
        monkeypatch.setattr("trackside.read.bundle.FREE_BYTES", 1 << 20)
        zeros = bytes(8 << 20)

        def put(members: dict[str, bytes]) -> None:
            members["inputs/zeros"] = zeros
            listing = json.loads(members[MANIFEST])
            listing["members"].append(
                {"name": "inputs/zeros", "size": len(zeros), "sha256": hashlib.sha256(zeros).hexdigest()}
            )
            members[MANIFEST] = json.dumps(listing).encode()

        self.refused(self.repacked(bundle, put), "expands more than")

    def test_a_duplicate_member_is_refused(self, bundle: Path) -> None:
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(bundle, "a") as archive:
            archive.writestr("inputs/train.log", "x")
        data = bundle.read_bytes()[:-DIGEST_LENGTH]
        bundle.write_bytes(data + hashlib.sha256(data).hexdigest().encode())
        self.refused(bundle, "appears twice")

    def test_a_wrong_seal_is_refused(self, bundle: Path) -> None:
        self.refused(self.repacked(bundle, lambda m: None, seal=False), "outside of its members")

    @pytest.mark.parametrize("lost", [1, 100, 2000])
    def test_a_truncated_bundle_is_refused(self, bundle: Path, lost: int) -> None:
        bundle.write_bytes(bundle.read_bytes()[:-lost])
        self.refused(bundle, "it does not end with a bundle's checksum")

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_changed_byte_is_detected(self, bundle: Path, data: st.DataObject) -> None:
        whole = bytearray(bundle.read_bytes())
        offset = data.draw(st.integers(0, len(whole) - 1))
        whole[offset] ^= data.draw(st.integers(1, 255))
        with pytest.raises(DamagedBundle):
            Bundle(io.BytesIO(whole)).check()

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_hostile_manifest_is_refused_or_read(self, bundle: Path, data: st.DataObject) -> None:
        """Any member list, sealed or not, is refused or read without an exception."""
        with zipfile.ZipFile(bundle) as archive:
            listing = json.loads(archive.read(MANIFEST))
        key = data.draw(st.sampled_from(sorted(listing)))
        json_like = st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=4
        )
        listing[key] = data.draw(json_like)
        copy = bundle.with_name("hostile.tsb")
        copy.write_bytes(bundle.read_bytes())
        self.repacked(copy, lambda m: m.update({MANIFEST: json.dumps(listing).encode()}))
        for source in walk([copy]):
            if isinstance(source, InputSource):
                source.stream.read()


class TestCommand:
    def test_the_command_writes_and_checks_a_bundle(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "run.tsb"
        response = run_cli("bundle", run, "-o", out)
        assert response.exit_code == 0, response.output
        assert "verdict B1 cuda-oom" in response.output
        assert f"sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}" in response.output
        assert "left out: weights.bin" in response.output
        response = run_cli("bundle", "--check", out)
        assert (response.exit_code, "inputs/train.log" in response.output) == (0, True)
        assert run_cli("verify", out).exit_code == 0
        assert json.loads(run_cli("diagnose", out, "--json").stdout)["primary"]["family"] == "B1"

    def test_a_path_that_is_no_bundle_is_not_called_damaged(self, run: Path, tmp_path: Path) -> None:
        for path, reason in ((tmp_path / "nope.tsb", "no such file or folder: "), (run, "is a folder, not a bundle")):
            response = run_cli("bundle", "--check", path)
            assert (response.exit_code, reason in response.output, "damaged" in response.output) == (2, True, False)

    def test_the_command_does_not_overwrite_without_force(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "run.tsb"
        out.write_text("mine")
        response = run_cli("bundle", run, "-o", out)
        assert (response.exit_code, out.read_text()) == (2, "mine")
        assert "--force" in response.output
        assert run_cli("bundle", run, "-o", out, "--force").exit_code == 0

    def test_a_mapping_file_is_private(self, run: Path, tmp_path: Path) -> None:
        (run / "train.log").write_text("MASTER_ADDR=10.1.2.3\n" + LOG)
        key = tmp_path / "key.json"
        response = run_cli("bundle", run, "-o", tmp_path / "run.tsb", "--redact", "--mapping", key)
        assert response.exit_code == 0, response.output
        assert "1 IPv4 address" in response.output
        assert "10.1.2.3" not in response.output
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert json.loads(key.read_text()) == {"IPv4 addresses": {"10.1.2.3": "192.0.2.3"}}

    @pytest.mark.parametrize(
        ("arguments", "status", "reason"),
        [
            ((), 2, "PATHS"),
            (("nowhere",), 2, "no such file"),
            (("RUN", "--mapping", "x"), 2, "--redact"),
            (("RUN", "-o", "no/such/folder/x.tsb"), 2, "no/such/folder does not exist"),
            (("RUN", "-o", "/proc/x.tsb"), 1, "cannot write /proc/x.tsb: "),
        ],
    )
    def test_wrong_arguments_are_refused_with_a_reason(
        self, run: Path, arguments: tuple[str, ...], status: int, reason: str
    ) -> None:
        response = run_cli("bundle", *(str(run) if argument == "RUN" else argument for argument in arguments))
        assert response.exit_code == status
        assert reason in response.output

    def test_a_failed_bundle_leaves_no_file(self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trackside.bundle.write.differences", lambda *verdicts: ["family: A1, was B1"])
        response = run_cli("bundle", run, "-o", tmp_path / "run.tsb")
        assert (response.exit_code, "family: A1, was B1" in response.output) == (1, True)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_manifest_fields_are_documented() -> None:
    """The documentation names every field."""
    text = (Path(__file__).parents[2] / "docs" / "bundle.md").read_text("utf-8")
    missing = [field.name for field in msgspec.structs.fields(BundleManifest) if f"`{field.name}`" not in text]
    assert not missing


def test_sliced_formats_exist() -> None:
    assert {format_.id for format_ in formats()} >= slicing.FORMATS
