"""Lines in Loki's push protocol arrive unchanged, down to the receiver's files."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.agent.receivers import Request
from tests.serve.receiving import RunningReceiver, lines
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.loki_push import RECORD_TEXT_BYTES, LokiPush
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.source import Reading
from trackside.http.client import HttpClient
from trackside.stores.receiver.options import ServeOptions

WIRE = LokiPush(Identity("n1"))


def decoded_lines(reading: Reading, wire: LokiPush = WIRE) -> list[tuple[dict[str, str], int, str]]:
    body, headers = wire.body([record for record, _ in wire.records(reading)])
    return Request("", headers, body).lines()


def test_lines_keep_their_labels_times_and_order() -> None:
    reading = Reading(time_ns=1_772_438_400_000_000_000)
    reading.line("first", slurm_job_id=4242, rank=0)
    reading.line("of another", slurm_job_id=4242, rank=1)
    reading.line("second", 1_772_438_400_000_000_007, slurm_job_id=4242, rank=0)
    assert decoded_lines(reading) == [
        ({"node": "n1", "rank": "0", "slurm_job_id": "4242"}, 1_772_438_400_000_000_000, "first"),
        ({"node": "n1", "rank": "0", "slurm_job_id": "4242"}, 1_772_438_400_000_000_007, "second"),
        ({"node": "n1", "rank": "1", "slurm_job_id": "4242"}, 1_772_438_400_000_000_000, "of another"),
    ]


def test_several_readings_are_one_push() -> None:
    records = []
    for number in range(5):
        reading = Reading(time_ns=number)
        reading.line(f"line {number}", unit="kernel")
        records += [record for record, _ in WIRE.records(reading)]
    body, headers = WIRE.body(records)
    assert [text for _, _, text in Request("", headers, body).lines()] == [f"line {number}" for number in range(5)]
    assert json.loads(gzip.decompress(body))["streams"][0] == {
        "stream": {"node": "n1", "unit": "kernel"},
        "values": [["0", "line 0"]],
    }
    assert headers == {"Content-Type": "application/json", "Content-Encoding": "gzip"}


def test_the_tenant_is_sent_as_a_header() -> None:
    assert LokiPush(Identity("n1"), "gpu").body([])[1]["X-Scope-OrgID"] == "gpu"


@given(st.text(st.characters(), max_size=200))
def test_any_text_survives(text: str) -> None:
    """Control characters, quotes, other scripts. Half a surrogate pair becomes a question mark."""
    reading = Reading()
    reading.line(text, unit="u")
    ((_, _, received_text),) = decoded_lines(reading)
    assert received_text == text.encode("utf-8", "replace").decode()


def test_a_burst_is_several_records_in_order() -> None:
    reading = Reading()
    for number in range(50_000):
        reading.line(f"{number} " + "x" * 60, number, rank=number % 2)
    records = list(WIRE.records(reading))
    assert max(len(record) for record, _ in records) < 2 * RECORD_TEXT_BYTES
    assert sum(count for _, count in records) == 50_000
    body, headers = WIRE.body([record for record, _ in records])
    for rank in ("0", "1"):
        times = [time_ns for labels, time_ns, _ in Request("", headers, body).lines() if labels["rank"] == rank]
        assert times == list(range(int(rank), 50_000, 2))


def test_lines_arrive_in_the_receivers_files(tmp_path: Path) -> None:
    receiver = RunningReceiver(ServeOptions(store=str(tmp_path / "store")))
    try:
        reading = Reading(time_ns=time.time_ns())
        reading.line("step 1 loss 2.0", slurm_job_id=4242, rank=3, stream="stdout")
        reading.line("step 2 loss \N{GREEK SMALL LETTER ALPHA}", slurm_job_id=4242, rank=3, stream="stdout")
        reading.line("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", unit="kernel")
        client = HttpClient(ReceiverOptions(url=receiver.url).with_path(WIRE.path))
        body, headers = WIRE.body([record for record, _ in WIRE.records(reading)])
        for _ in range(2):  # the second time as after a lost response
            assert client.request("POST", "", body=body, headers=headers).status == 204
        client.close()
    finally:
        receiver.close()
    texts_by_path = lines(tmp_path / "store")
    assert sorted(texts_by_path) == ["job-4242/slurm-4242.rank3@n1.log", "nodes/n1/system.log"]
    texts = texts_by_path["job-4242/slurm-4242.rank3@n1.log"]
    assert [text.partition("Z ")[2] for text in texts] == ["stdout F step 1 loss 2.0", "stdout F step 2 loss α"]
    assert len(texts_by_path["nodes/n1/system.log"]) == 1
    assert "Xid (PCI:0000:3b:00): 79" in texts_by_path["nodes/n1/system.log"][0]
