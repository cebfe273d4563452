"""``nvidia-smi -q -x``: its schemas, several documents, damage, and documents that must be refused."""

from __future__ import annotations

import itertools

import pytest

from tests.read.nvidia.reading import label_sets, last, of_gpu, points, read, utc

MIB = float(1 << 20)
T0 = utc("2026-11-21 08:00:05")
UUID = "GPU-11111111-2222-3333-4444-55555555555"

OLD_REASONS = """<clocks_throttle_reasons>
<clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
<clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
<clocks_throttle_reason_display_clocks_setting>Active</clocks_throttle_reason_display_clocks_setting>
</clocks_throttle_reasons>"""
NEW_REASONS = OLD_REASONS.replace("throttle", "event")
OLD_POWER = (
    "<power_readings><power_draw>67.03 W</power_draw><power_limit>500.00 W</power_limit>"
    "<enforced_power_limit>450.00 W</enforced_power_limit></power_readings>"
)
NEW_POWER = (
    "<gpu_power_readings><average_power_draw>67.03 W</average_power_draw><instant_power_draw>70.00 W"
    "</instant_power_draw><current_power_limit>450.00 W</current_power_limit></gpu_power_readings>"
    "<module_power_readings><average_power_draw>900.00 W</average_power_draw></module_power_readings>"
)


def gpu(number: int = 0, reasons: str = NEW_REASONS, power: str = NEW_POWER, busy: str = "99 %") -> str:
    bus = f"00000000:{0x1B + 16 * number:02X}:00.0"
    return f"""<gpu id="{bus}">
<product_name>NVIDIA A100-SXM4-80GB</product_name>
<uuid>{UUID}{number}</uuid>
<minor_number>5</minor_number>
<gpu_recovery_action>None</gpu_recovery_action>
<pci><pci_bus_id>{bus}</pci_bus_id><replay_counter>4</replay_counter><tx_util>4000 KB/s</tx_util><rx_util>N/A</rx_util></pci>
<performance_state>P8</performance_state>
{reasons}
<fb_memory_usage><total>81920 MiB</total><reserved>869 MiB</reserved><used>22000 MiB</used><free>59051 MiB</free></fb_memory_usage>
<utilization><gpu_util>{busy}</gpu_util><memory_util>N/A</memory_util></utilization>
<ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable>1</sram_uncorrectable>
<dram_correctable>2</dram_correctable><dram_uncorrectable>3</dram_uncorrectable></volatile></ecc_errors>
<retired_pages><double_bit_retirement><retired_count>5</retired_count></double_bit_retirement>
<pending_retirement>No</pending_retirement></retired_pages>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>2</remapped_row_unc>
<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>27 C</gpu_temp><memory_temp>44 C</memory_temp></temperature>
{power}
<clocks><graphics_clock>1275 MHz</graphics_clock><sm_clock>1270 MHz</sm_clock><mem_clock>1593 MHz</mem_clock></clocks>
<max_clocks><sm_clock>1410 MHz</sm_clock></max_clocks>
<supported_clocks><supported_mem_clock><value>1593 MHz</value></supported_mem_clock></supported_clocks>
<processes><process_info><pid>5762</pid><type>C</type><process_name>python &amp; co</process_name>
<used_memory>1005 MiB</used_memory></process_info></processes>
</gpu>"""


def document(*gpus: str, attached: int | None = None, schema: str = "v12", at: str = "Sat Nov 21 08:00:05 2026") -> str:
    return (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{schema}.dtd">\n<nvidia_smi_log>\n'
        f"<timestamp>{at}</timestamp>\n<attached_gpus>{len(gpus) if attached is None else attached}</attached_gpus>\n"
        + "\n".join(gpus)
        + "\n</nvidia_smi_log>\n"
    )


@pytest.mark.parametrize(
    ("schema", "reasons", "power"), [("v11", OLD_REASONS, OLD_POWER), ("v13", NEW_REASONS, NEW_POWER)]
)
def test_every_schema_gives_the_same_values(schema: str, reasons: str, power: str) -> None:
    result, sink = read(document(gpu(0, reasons, power), schema=schema))
    assert (result.format, result.status) == ("nvidia-smi-xml", "read")
    assert of_gpu(sink, "0") == {
        "gpu_recovery_action": 0.0,
        "gpu_pcie_replays_total": 4.0,
        "gpu_pcie_tx_bytes_per_second": 4e6,
        "gpu_pstate": 8.0,
        "gpu_throttle_reasons": float(0x101),
        "gpu_memory_total_bytes": 81920 * MIB,
        "gpu_memory_reserved_bytes": 869 * MIB,
        "gpu_memory_used_bytes": 22000 * MIB,
        "gpu_memory_free_bytes": 59051 * MIB,
        "gpu_utilization_ratio": 0.99,
        "gpu_ecc_correctable_total": 2.0,
        "gpu_ecc_uncorrectable_total": 4.0,
        "gpu_pages_pending": 0.0,
        "gpu_rows_remapped_correctable_total": 0.0,
        "gpu_rows_remapped_uncorrectable_total": 2.0,
        "gpu_row_remap_pending": 1.0,
        "gpu_row_remap_failed": 0.0,
        "gpu_temperature_celsius": 27.0,
        "gpu_memory_temperature_celsius": 44.0,
        "gpu_power_watts": 67.03,
        "gpu_power_limit_watts": 450.0,
        "gpu_sm_clock_hertz": 1.27e9,
        "gpu_memory_clock_hertz": 1.593e9,
        "gpu_sm_clock_max_hertz": 1.41e9,
        "gpu_processes": 1.0,
        "trackside_gpu_process_attached": 1.0,
    }
    assert last(sink)["gpu_process_memory_used_bytes", "gpu=0 pid=5762"] == 1005 * MIB
    assert last(sink)["gpu_pages_retired_total", "cause=double_bit gpu=0"] == 5.0
    assert {curve[0][0] for curve in points(sink).values()} == {T0}
    labels = next(labels for labels in label_sets(sink) if dict(labels).get("gpu") == "0")
    assert set(labels) >= {("gpu_uuid", f"{UUID}0"), ("pci", "0000:1b:00"), ("gpu_model", "NVIDIA A100-SXM4-80GB")}


def test_several_documents_in_one_file() -> None:
    text = "".join(document(gpu(0, busy=f"{n} %"), at=f"Sat Nov 21 08:{n:02}:05 2026") for n in range(3))
    _, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=0"] == [(T0 + 60 * n, n / 100) for n in range(3)]


def test_a_single_gpu_of_several_has_no_index() -> None:
    _, sink = read(document(gpu(1), attached=4))
    assert "gpu" not in {name for labels in label_sets(sink) for name, _ in labels}
    assert ("pci", "0000:2b:00") in {pair for labels in label_sets(sink) for pair in labels}


def test_mig_instances_have_curves_of_their_own() -> None:
    mig = """<mig_devices><mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id>
<fb_memory_usage><total>19968 MiB</total><used>12 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>4</gpu_instance_id>
<fb_memory_usage><used>13 MiB</used></fb_memory_usage></mig_device></mig_devices>"""
    _, sink = read(document(gpu(0).replace("<minor_number>", mig + "<minor_number>")))
    used = {labels: value for (metric, labels), value in last(sink).items() if metric == "gpu_memory_used_bytes"}
    assert used == {"gpu=0": 22000 * MIB, "gpu=0 mig=3": 12 * MIB, "gpu=0 mig=4": 13 * MIB}


@pytest.mark.parametrize("cut", [0.4, 0.6, 0.9])
def test_a_truncated_document_gives_its_complete_gpus(cut: float) -> None:
    text = document(gpu(0), gpu(1), attached=2)
    end = int(len(text) * cut)
    result, sink = read(text[:end])
    complete_gpus = text[:end].count("</gpu>")
    assert (result.format, result.status) == ("nvidia-smi-xml", "partial")
    assert len({labels for labels in label_sets(sink) if dict(labels).get("pci")}) >= complete_gpus
    assert sum(metric == "gpu_utilization_ratio" for metric, _ in last(sink)) == min(complete_gpus, 1)
    assert "1 documents are truncated or malformed" in result.note


def test_documents_after_a_garbled_one_are_read() -> None:
    broken = document(gpu(0)).replace("</clocks>", "</clock>")
    result, sink = read(document(gpu(0, busy="5 %")) * 3 + broken + document(gpu(0), at="Sat Nov 21 09:00:05 2026"))
    assert result.status == "partial"
    assert points(sink)["gpu_utilization_ratio", "gpu=0"][-1] == (T0 + 3600, 0.99)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [
 <!ENTITY a "aaaaaaaaaa">
 <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
 <!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">
]>
<nvidia_smi_log><timestamp>Sat Nov 21 08:00:05 2026</timestamp><attached_gpus>1</attached_gpus>
<gpu id="00000000:1B:00.0"><uuid>&c;</uuid><utilization><gpu_util>9 %</gpu_util></utilization></gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(
    "text", [BOMB, BOMB.replace('<!ENTITY a "aaaaaaaaaa">', '<!ENTITY a SYSTEM "file:///etc/passwd">')]
)
def test_documents_that_declare_entities_are_refused(text: str) -> None:
    result, sink = read(text)
    assert not sink.blocks
    assert result.format == "nvidia-smi-xml"
    assert "entities are declared" in result.note


def test_nesting_depth_is_bounded() -> None:
    text = document("<gpu>" + "<a>" * 100 + "</a>" * 100 + "</gpu>")
    result, _ = read(text)
    assert "nested too deeply" in result.note


def test_other_xml_is_not_recognized() -> None:
    result, _ = read('<?xml version="1.0"?>\n<testsuite><case name="a"/></testsuite>\n')
    assert result.format != "nvidia-smi-xml"


def test_a_refused_document_is_noted_and_the_next_is_read() -> None:
    result, sink = read(BOMB + document(gpu(0)))
    assert result.status == "partial"
    assert "1 documents were refused: entities are declared in them" in result.note
    assert "garbled" not in result.note
    assert last(sink)["gpu_utilization_ratio", "gpu=0"] == 0.99


def test_an_external_file_named_by_a_document_is_not_read() -> None:
    text = document(gpu(0)).replace('"nvsmi_device_v12.dtd"', '"file:///etc/passwd"')
    assert "file:///etc/passwd" in text
    result, sink = read(text)
    assert result.status == "read"
    assert "root:" not in str(label_sets(sink))


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("<gpu id='00000000:0C:00.0'></gpu>\n" * 200, "more than 100 GPUs"),
        (
            "<gpu id='00000000:0C:00.0'><processes>\n" + "<process_info><pid>1</pid></process_info>\n" * 200,
            "100 processes",
        ),
        ("<gpu id='00000000:0C:00.0'><mig_devices>\n" + "<mig_device></mig_device>\n" * 200, "100 instances"),
    ],
)
def test_lists_of_gpus_processes_and_instances_are_bounded(
    body: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in itertools.product(
        ("nvidia_smi_state", "formats.nvidia_smi_xml"), ("MAX_GPUS_PER_CAPTURE", "MAX_PROCESSES")
    ):
        monkeypatch.setattr(f"trackside.read.{module}.{name}", 100)
    result, _ = read(f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n{body}')
    assert (result.format, result.status) == ("nvidia-smi-xml", "partial")
    assert note in result.note
