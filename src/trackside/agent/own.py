"""What the agent tells of itself: how its sources do, what got through to its receivers, what it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from trackside.agent.out.shipping import Shipping
from trackside.agent.runner import Running
from trackside.agent.source import Reading

ID = "agent"
"""Its own readings' source."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
STARTED = time.time()


def add(reading: Reading, running: Iterable[Running], shipping: Iterable[Shipping]) -> None:
    """All of it as of now."""
    for each in running:
        _add_collector(reading, each)
    for to in shipping:
        _add_receiver(reading, to)
    reading.sample("trackside_agent_memory_bytes", resident_bytes())
    reading.sample("trackside_agent_cpu_seconds_total", time.process_time())
    reading.sample("trackside_agent_start_time", STARTED)


def _add_collector(reading: Reading, running: Running) -> None:
    health, collector = running.health, running.id
    asked = running.collection.origin != "default"
    if health.state in ("starting", "off") or (health.state == "unavailable" and not health.last_success and not asked):
        return  # a node without InfiniBand is none whose InfiniBand fails
    reading.sample("trackside_collector_success", health.state == "works", collector=collector)
    reading.sample("trackside_collector_seconds", health.seconds, collector=collector)
    reading.sample("trackside_collector_failures", health.failures, collector=collector)
    if health.last_success:
        reading.sample("trackside_collector_last_success_time", health.last_success, collector=collector)
    for kind, count in sorted(running.lost.items()):
        reading.sample("trackside_collector_lost_total", count, collector=collector, kind=kind)


def _add_receiver(reading: Reading, to: Shipping) -> None:
    name, sent, waiting = to.protocol.name, to.sent, to.spool.waiting
    if sent.requests:
        reading.sample("trackside_send_success", not sent.failures, receiver=name)
    if sent.last_success:
        reading.sample("trackside_send_last_success_time", sent.last_success, receiver=name)
    reading.sample("trackside_send_sent_total", sent.count, receiver=name)
    reading.sample("trackside_send_failures_total", sent.failed, receiver=name)
    reading.sample("trackside_send_waiting", waiting.count, receiver=name)
    reading.sample("trackside_send_waiting_bytes", waiting.disk_bytes, receiver=name, kind="disk")
    reading.sample("trackside_send_waiting_bytes", waiting.memory_bytes, receiver=name, kind="memory")
    for reason, count in sorted(waiting.lost.items()):
        if count:
            reading.sample("trackside_send_lost_total", count, receiver=name, reason=reason)


def resident_bytes() -> int:
    """Of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
