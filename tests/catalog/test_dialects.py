"""The catalog of metrics, and the translation of foreign names, labels, units and blanks."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tools.cases import CORPUS
from trackside.catalog.dialect import Dialect, dialects, translate
from trackside.catalog.dialects.dcgm import FIELDS
from trackside.catalog.dialects.nvidia_smi import FIELDS as QUERY_FIELDS
from trackside.catalog.labels import Label, normalize, pci_address
from trackside.catalog.metrics import COMMON_LABELS, DESCRIPTIVE_LABELS, METRICS, labels_of
from trackside.catalog.settling import is_blank
from trackside.catalog.throttle import REASONS, mask, reasons_in
from trackside.catalog.units import UNITS
from trackside.catalog.units import factor as factor_of

DATA = CORPUS.parent / "data"
MIB = float(1 << 20)
L40S = {
    "gpu": "0",
    "UUID": "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43",
    "pci_bus_id": "00000000:00:07.0",
    "device": "nvidia0",
    "modelName": "NVIDIA L40S",
    "Hostname": "gpu1-wl8sg",
    "DCGM_FI_DRIVER_VERSION": "595.58.03",
}


def series(name: str, **labels: str) -> tuple[str, dict[str, str], float, str]:
    """The translation of a foreign series: metric, labels, scale, guess."""
    series = translate(name, labels)
    assert series is not None, name
    return series.metric, dict(series.labels), series.scale, series.guess


def translations() -> Iterator[tuple[Dialect, str, str, dict[str, str]]]:
    """(dialect, foreign name, our metric, labels implied by the name) of each translation in the dialects."""
    for dialect in dialects():
        for name, foreign in dialect.names.items():
            for metric in (foreign.metric, *(ours for _, ours in foreign.cases)):
                yield dialect, name, metric, dict(foreign.labels)


# -- the catalog


def test_metric_names_end_with_unit_and_kind() -> None:
    ends = {"ratio": "_ratio", "C": "_celsius", "W": "_watts", "Hz": "_hertz", "B/s": "_per_second"}
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        if metric.unit in ends:
            assert name.endswith(ends[metric.unit]), name
        if metric.unit == "bytes":
            assert re.search(r"_bytes(_total)?$", name), name
        if metric.unit == "s":
            assert re.search(r"_seconds(_total)?$", name), name


def test_bounds_leave_room_and_labels_are_not_common_ones() -> None:
    for name, metric in METRICS.items():
        assert metric.low < metric.high, name
        assert not set(metric.labels) & COMMON_LABELS, name
        assert metric.meaning
        assert not metric.meaning.endswith(".")


def test_host_series_have_no_gpu_labels() -> None:
    assert "gpu" in labels_of("gpu_power_watts")
    assert "rank" in labels_of("training_loss")
    assert labels_of("host_power_watts") == {"node", "job", "user", "source", "device"}
    assert series("node_load1", instance="n1:9100", gpu="3", uuid="GPU-1")[1] == {"node": "n1"}


def test_only_last_error_metrics_are_sticky() -> None:
    assert {name for name in METRICS if METRICS[name].kind == "sticky"} == {"gpu_xid_last", "gpu_ras_event_last"}
    assert METRICS["gpu_throttle_reasons"].kind == "flags"


TRACED = {
    "cuda_kernel_launches_total": set(), "cuda_api_seconds_total": {"api"}, "cuda_api_calls_total": {"api"},
    "cuda_memcpy_bytes_total": {"direction"}, "nccl_collectives_started_total": {"op", "comm"},
    "nccl_collectives_completed_total": {"op", "comm"}, "nccl_collective_seconds_total": {"op", "comm"},
    "nccl_communicators": set(), "gpu_process_attached": set(), "tracer_attached": set(),
    "tracer_lost_events_total": set(), "collector_success": {"collector"}, "collector_seconds": {"collector"},
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_metrics_of_the_agent_keep_their_labels(name: str) -> None:
    labels = TRACED[name] | {"node", "gpu", "pid", "rank", "job"}
    translation = series(f"trackside_{name}", **dict.fromkeys(labels, "1"))
    assert translation == (f"trackside_{name}", dict.fromkeys(labels, "1"), 1.0, "")


# -- the dialects as a whole


def test_every_translation_has_a_known_metric_and_allowed_labels() -> None:
    for dialect, name, metric, labels in translations():
        assert metric in METRICS, (dialect.id, name, metric)
        assert set(labels) <= labels_of(metric), (dialect.id, name, labels)
        if "reason" in labels:
            assert labels["reason"] in REASONS, (dialect.id, name, labels)


def test_no_name_is_in_two_dialects() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for dialect in dialects():
        lower = [name.lower() for name in dialect.names]
        for name in lower:
            owners[name].add(dialect.id)
        meanings: dict[str, object] = {}
        for name, foreign in dialect.names.items():
            assert meanings.setdefault(name.lower(), foreign) == foreign, f"{dialect.id} has {name} twice"
    assert {name: ids for name, ids in owners.items() if len(ids) > 1} == {}


def test_names_are_case_insensitive() -> None:
    for dialect in dialects():
        for name, foreign in dialect.names.items():
            for spelling in (name, name.lower(), name.upper()):
                series = translate(spelling, {})
                assert series is not None, (dialect.id, spelling)
                assert (series.metric, series.scale, series.guess) == (foreign.metric, foreign.scale, foreign.guess)
                assert dict(series.labels) == dict(foreign.labels)


def test_labels_do_not_make_an_unknown_name_known() -> None:
    assert translate("container_cpu_usage_seconds_total", {"node": "n1"}) is None
    assert translate("", {}) is None
    assert series("gpu_clock", clock_type="soc", gpu_id="1") == (
        "gpu_clock_hertz",
        {"gpu": "1", "kind": "soc"},
        1e6,
        "",
    )


def test_guesses_match_the_unit_of_the_metric() -> None:
    for dialect, name, metric, _ in translations():
        guess = dialect.names[name].guess
        if guess:
            assert METRICS[metric].unit == guess, (dialect.id, name)
            assert dialect.names[name].scale == 1.0, (dialect.id, name)


def test_label_names_of_dialects_are_normalized_and_map_to_known_labels() -> None:
    for dialect in dialects():
        for foreign, label in dialect.labels.items():
            assert foreign == foreign.lower().replace(".", "_"), (dialect.id, foreign)
            assert label.name in COMMON_LABELS or any(label.name in metric.labels for metric in METRICS.values()), label


# -- each dialect: a file of cases, FOREIGN{label="value"} -> OURS{label="value"} * SCALE

SAMPLES = Path(__file__).parent / "dialects"
CASE = re.compile(
    r"(?P<name>[^{ ]+)(?:\{(?P<labels>.*?)\})? -> (?P<ours>\w+)(?:\{(?P<implied>.*?)\})?(?: \* (?P<scale>\S+))?"
)
LABEL = re.compile(r'([\w.]+)="([^"]*)"')


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.id)
def test_names_of_a_dialect_are_translated(dialect: Dialect) -> None:
    lines = (SAMPLES / f"{dialect.id.replace('-', '_')}.txt").read_text().splitlines()
    assert lines
    for line in lines:
        case = CASE.fullmatch(line)
        assert case is not None, line
        translated = translate(case["name"], dict(LABEL.findall(case["labels"] or "")))
        assert translated is not None, line
        assert (translated.metric, dict(translated.labels)) == (
            case["ours"],
            dict(LABEL.findall(case["implied"] or "")),
        ), line
        assert math.isclose(translated.scale, float(case["scale"] or 1)), line


def test_units_that_depend_on_the_size_are_guessed() -> None:
    assert series("DCGM_FI_DEV_GPU_UTIL_RATIO")[2:] == (1.0, "ratio")
    assert series("dcgm_fi_dev_tensor_active")[2:] == (1.0, "ratio")
    assert series("training_model_flops_utilization")[2:] == (1.0, "ratio")


# -- numbers of fields


@pytest.mark.parametrize(
    ("number", "name", "short"),
    [
        (203, "DEV_GPU_UTIL", "GPUTL"),
        (230, "DEV_XID_ERRORS", "XIDER"),
        (150, "DEV_GPU_TEMP", "TMPTR"),
        (140, "DEV_MEMORY_TEMP", "MMTMP"),
        (155, "DEV_POWER_USAGE", "POWER"),
        (112, "DEV_CLOCKS_EVENT_REASONS", "DVCCTR"),
        (252, "DEV_FB_USED", "FBUSD"),
        (311, "DEV_ECC_DBE_VOL_TOTAL", "EDVTL"),
        (319, "DEV_ECC_DBE_VOL_DEV", ""),
        (395, "DEV_ROW_REMAP_FAILURE", "RRF"),
        (409, "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NFELT"),
        (451, "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6", "NFEL6"),
        (436, "DEV_NVLINK_RECOVERY_ERROR_COUNT_L12", "NRCL12"),
        (480, "DEV_NVLINK_BANDWIDTH_L11", "NBWL11"),
        (1001, "PROF_GR_ENGINE_ACTIVE", "GRACT"),
        (1002, "PROF_SM_ACTIVE", "SMACT"),
        (1012, "PROF_NVLINK_RX_BYTES", "NVLRX"),
        (1072, "PROF_NVLINK_L16_TX_BYTES", ""),
        (842, "DEV_NVLINK_TX_BANDWIDTH_L17", ""),
        (1203, "DEV_NVLINK_COUNT_RX_BYTES", ""),
    ],
)
def test_dcgm_field_numbers(number: int, name: str, short: str) -> None:
    (field,) = (field for field in FIELDS if field.number == number)
    assert name in field.names.split()
    assert field.short == short


def test_a_dcgm_field_has_one_number_and_a_short_name_of_its_own() -> None:
    assert len({field.number for field in FIELDS}) == len(FIELDS)
    short = [field.short for field in FIELDS if field.short]
    assert len(set(short)) == len(short)


# -- labels


def test_labels_of_dcgm_exporter() -> None:
    assert series("DCGM_FI_DEV_GPU_TEMP", **L40S)[1] == {
        "node": "gpu1-wl8sg",
        "gpu": "0",
        "gpu_uuid": "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43",
        "gpu_model": "NVIDIA L40S",
        "pci": "0000:00:07",
        "driver": "595.58.03",
    }


@pytest.mark.parametrize(
    ("labels", "ours"),
    [
        ({"Hostname": "n1", "instance": "10.0.0.7:9400"}, {"node": "n1"}),
        ({"hostname": "n1", "node": "n2"}, {"node": "n2"}),
        ({"exported_instance": "n3:9400", "instance": "gateway:9091"}, {"node": "n3"}),
        ({"instance": "http://n4:9400/metrics"}, {"node": "n4"}),
        ({"instance": "[fd00::7]:9400"}, {"node": "fd00::7"}),
        ({"instance": "n5.cluster.example"}, {"node": "n5.cluster.example"}),
        ({"instance": "localhost:9400"}, {}),
        ({"Hostname": "localhost", "instance": "n6:9400"}, {"node": "n6"}),
        ({"device": "nvidia3"}, {"gpu": "3"}),
        ({"device": "nvidia3", "gpu": "5"}, {"gpu": "5"}),
        ({"device": "nvidiactl"}, {}),
        ({"minor_number": "07"}, {"gpu": "7"}),
        ({"gpu": "GPU-5b4e07f6", "gpu_id": "1"}, {"gpu": "1"}),
        ({"GPU_I_ID": "", "GPU_I_PROFILE": ""}, {}),
        ({"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}, {"mig": "3"}),
        ({"GPU_I_PROFILE": "1g.10gb"}, {"mig": "1g.10gb"}),
        ({"hpc_job": "48563"}, {"job": "48563"}),
        ({"hpc_job": "", "SLURM_JOB_ID": "9_2.batch"}, {"job": "9_2"}),
        ({"slurm_jobid": "12+1"}, {"job": "12+1"}),
        ({"exported_job": "12"}, {"job": "12"}),
        ({"exported_job": "node-exporter"}, {}),
        ({"job": "48563"}, {}),
        ({"job_id": "0"}, {}),
        ({"pci_bus_id": "N/A"}, {}),
        ({"modelName": "[N/A]"}, {}),
        ({"pod": "train-0", "namespace": "ml", "container": "main"}, {}),
    ],
)
def test_labels_are_translated_in_any_order(labels: dict[str, str], ours: dict[str, str]) -> None:
    assert series("DCGM_FI_DEV_GPU_UTIL", **labels)[1] == ours
    assert series("DCGM_FI_DEV_GPU_UTIL", **dict(reversed(labels.items())))[1] == ours


def test_labels_in_the_name_override_labels() -> None:
    translation = series("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3", nvlink="7")
    assert translation[1] == {"kind": "crc_flit", "link": "3"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:9B:00.0", "0000:9b:00"),
        ("0000:9b:00", "0000:9b:00"),
        ("9B:00.0", "0000:9b:00"),
        ("PCI:0009:01:00", "0009:01:00"),
        ("00010000:01:00.0", "10000:01:00"),
        ("GPU-1", ""),
        ("", ""),
    ],
)
def test_pci_addresses_are_normalized(text: str, address: str) -> None:
    assert pci_address(text) == address


def test_empty_and_blank_labels_are_dropped() -> None:
    assert [normalize(text, Label("gpu_model")) for text in (" N/A ", "", "-", "A100 ")] == ["", "", "", "A100"]


# -- units, blanks, bounds


@pytest.mark.parametrize(
    ("text", "metric", "factor"),
    [
        ("MiB", "gpu_memory_used_bytes", MIB),
        ("[MiB]", "gpu_memory_used_bytes", MIB),
        ("MB", "gpu_memory_used_bytes", MIB),
        ("%", "gpu_utilization_ratio", 0.01),
        (" W ", "gpu_power_watts", 1.0),
        ("mW", "gpu_power_watts", 1e-3),
        ("MHz", "gpu_sm_clock_hertz", 1e6),
        ("C", "gpu_temperature_celsius", 1.0),
        ("us", "gpu_throttle_seconds_total", 1e-6),
        ("mJ", "gpu_energy_joules_total", 1e-3),
        ("MB/s", "gpu_pcie_tx_bytes_per_second", 1e6),
        ("errs", "gpu_ecc_correctable_lifetime_total", 1.0),
        ("bool", "gpu_throttle_active", 1.0),
        ("", "gpu_xid_last", 1.0),
    ],
)
def test_unit_names_give_the_factor(text: str, metric: str, factor: float) -> None:
    assert factor_of(text, METRICS[metric].unit) == factor


@pytest.mark.parametrize(("text", "metric"), [("MiB", "gpu_power_watts"), ("", "gpu_power_watts"), ("W", "gpu_pstate")])
def test_a_unit_that_does_not_fit_the_metric_is_refused(text: str, metric: str) -> None:
    with pytest.raises(ValueError, match="is not a unit for"):
        factor_of(text, METRICS[metric].unit)


def test_units_are_units_of_the_catalog() -> None:
    assert set(UNITS) <= {metric.unit for metric in METRICS.values()}
    for ours, writings in UNITS.items():
        assert ours in {"ratio", "bool", "errors", "replays"} or writings[ours] == 1.0


# -- throttle reasons


def test_throttle_reasons_and_masks() -> None:
    bits = [reason.bit for reason in REASONS.values() if reason.bit]
    assert sorted(bits) == [1 << n for n in range(9)]
    assert reasons_in(0x0) == ()
    assert reasons_in(0x4 | 0x40 | 0x8) == ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown")
    assert reasons_in(1 << 40) == ()
    assert mask("hard") == 0x8 | 0x40 | 0x80
    assert mask("thermal") == 0x20
    assert mask("hard", "thermal", "benign") == 0x1FF


# -- real scrapes


def scraped(path: Path) -> list[tuple[str, dict[str, str], float]]:
    samples = []
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()  # type: ignore[union-attr]
            samples.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    return samples


def ours_of(path: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """A scrape translated: (our metric, labels except descriptive ones) -> value in our unit."""
    values = {}
    for name, labels, value in scraped(path):
        if (translation := translate(name, labels)) is not None:
            assert not translation.guess
            identity = tuple(pair for pair in translation.labels if pair[0] not in DESCRIPTIVE_LABELS)
            number = value * translation.scale
            assert not is_blank(np.array([value])).any(), name
            assert METRICS[translation.metric].low <= number <= METRICS[translation.metric].high, name
            values[translation.metric, identity] = number
    return values


@pytest.mark.corpus
def test_dcgm_exporter_scrapes() -> None:
    node, gpu = ("node", "i-030791dc5a37cd257"), ("gpu", "0")
    values = ours_of(DATA / "dcgm-exporter-scrapes" / "l4-kops-1.prom")
    assert len(values) == 22
    assert {metric: values[metric, (gpu, node)] for metric in (
        "gpu_sm_clock_hertz", "gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total",
        "gpu_memory_free_bytes", "gpu_memory_reserved_bytes", "gpu_pcie_tx_bytes_per_second", "gpu_engine_active_ratio",
    )} == pytest.approx({
        "gpu_sm_clock_hertz": 210e6, "gpu_temperature_celsius": 31.0, "gpu_power_watts": 16.365,
        "gpu_energy_joules_total": 4742.776, "gpu_memory_free_bytes": 22563 * MIB,
        "gpu_memory_reserved_bytes": 470 * MIB, "gpu_pcie_tx_bytes_per_second": 112603.0, "gpu_engine_active_ratio": 0.0,
    })  # fmt: skip
    for scrape in ("l4-kops-2.prom", "l40s-upcloud.prom"):
        assert {metric for metric, _ in ours_of(DATA / "dcgm-exporter-scrapes" / scrape)} == {m for m, _ in values}


@pytest.mark.corpus
def test_a_gpu_under_load_through_the_exporter_of_nvidia_smi() -> None:
    folder = DATA / "nvidia-smi-captures" / "metrics"
    values = ours_of(folder / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.metrics")
    expected = {
        "gpu_utilization_ratio": 1.0, "gpu_memory_utilization_ratio": 0.11, "gpu_memory_used_bytes": 19818 * MIB,
        "gpu_memory_total_bytes": 81559 * MIB, "gpu_power_watts": 631.95, "gpu_power_instant_watts": 625.68,
        "gpu_temperature_celsius": 59.0, "gpu_temperature_margin_celsius": 26.0, "gpu_sm_clock_hertz": 1.98e9,
        "gpu_sm_clock_max_hertz": 1.98e9, "gpu_throttle_reasons": 0.0, "gpu_pstate": 0.0, "gpu_processes": 3.0,
        "gpu_pcie_link_generation": 5.0, "gpu_row_remap_failed": 0.0, "gpu_fabric_state": 3.0,
    }  # fmt: skip
    assert {metric: values[metric, ()] for metric in expected} == pytest.approx(expected, rel=1e-4)
    assert values["gpu_present", (("gpu", "0"),)] == 1.0
    assert values["gpu_process_memory_used_bytes", (("pid", "11345"),)] == pytest.approx(15690 * MIB)
    assert values["gpu_power_limit_range_watts", (("kind", "min"),)] == 200.0
    idle = ours_of(folder / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__idle.metrics")
    assert reasons_in(int(idle["gpu_throttle_reasons", ()])) == ("gpu_idle",)
    assert idle["gpu_throttle_active", (("reason", "gpu_idle"),)] == 1.0


def captured(path: Path) -> Iterator[dict[str, str]]:
    """The rows of ``--query-gpu`` in a capture, each under its heading."""
    heading: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in next(csv.reader([line]))] if line.count(",") > 100 and line[0] != "#" else []
        if cells and cells[0] == "timestamp":
            heading = cells
        elif cells and len(cells) == len(heading):
            yield dict(zip(heading, cells, strict=True))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "gpu",
    [
        "nvidia-h100-80gb-hbm3__590.48.01",
        "nvidia-h100-mig__590.48.01",
        "nvidia-l40s__595.80",
        "nvidia-geforce-rtx-2080-super__595.71.05",
    ],
)
def test_nvidia_smi_and_its_exporter_give_the_same_values(gpu: str) -> None:
    folder = DATA / "nvidia-smi-captures"
    rows = list(captured(folder / "captures" / f"linux-x86_64__{gpu}.txt"))
    assert len(rows) == 2
    compared = 0
    for row, state in zip(rows, ("idle", "load"), strict=True):
        exported = ours_of(folder / "metrics" / f"linux-x86_64__{gpu}__{state}.metrics")
        for heading, cell in row.items():
            field, _, unit = heading.partition(" ")
            translation, match = translate(field, {}), re.match(r"-?\d+(\.\d+)?(?!\S*[a-z.])", cell)
            differs = field in ("power.draw.instant", "clocks.current.graphics")
            if (
                translation is None
                or match is None
                or differs
                or (translation.metric, translation.labels) not in exported
            ):
                continue
            factor = factor_of(unit, METRICS[translation.metric].unit) if unit else translation.scale
            assert factor == translation.scale, f"{field}: {unit}"
            assert float(match[0]) * factor == pytest.approx(
                exported[translation.metric, translation.labels], rel=1e-4
            ), field
            compared += 1
    assert compared >= 60


@pytest.mark.corpus
def test_mapped_query_fields_are_documented_by_nvidia_smi() -> None:
    documented: set[str] = set()
    for path in (DATA / "nvidia-smi-captures" / "captures").glob("*.txt"):
        documented.update(re.findall(r'(?:^| or )"([\w.]+)"', path.read_text("utf-8"), re.MULTILINE))
    older = {field for field in QUERY_FIELDS if field.startswith("ecc.errors.corrected") and ".sram." in field}
    older |= {
        field for field in QUERY_FIELDS if re.search(r"uncorrected\.volatile\.sram\.(l2|sm|mcu|pcie|other)", field)
    }
    assert set(QUERY_FIELDS) - documented == older
