"""Fields of the event ``stack`` from a thread's stack, whatever its source."""

from __future__ import annotations

from collections.abc import Sequence

from trackside.catalog.hang_lines import place_of
from trackside.catalog.python_stack import Call, collective_in, job_call, waits_for_gpu
from trackside.model import Scalar


def stack_fields(calls: Sequence[Call], native: Sequence[str] = (), place: str | None = None) -> dict[str, Scalar]:
    """Fields of a stack; unknown ones are None. ``place``: the innermost frame of the job's code, if the source knows
    it better than the short file names of ``calls`` show."""
    own_frame = job_call(calls)
    if place is not None:
        own_frame = next((call for call in calls if place_of(call) == place), own_frame)
    elif own_frame is not None:
        place = place_of(own_frame)
    inner_calls = calls[: calls.index(own_frame)] if own_frame is not None else calls
    collective = collective_in(inner_calls, native)
    return {
        "top": calls[0].name if calls else native[0] if native else None,
        "place": place,
        "collective": collective,
        "waits": "gpu" if collective is None and waits_for_gpu(inner_calls, native) else None,
        "frames": ";".join(call.name for call in calls) or None,
        "native": ";".join(native) or None,
    }
