"""What a thread's stack tells, as fields of the event ``stack``: the same whichever way it came."""

from __future__ import annotations

from collections.abc import Sequence

from trackside.catalog.hang_lines import place_of
from trackside.catalog.python_stack import Call, collective_in, own_call, waits_for_gpu
from trackside.model import Scalar


def stack_fields(calls: Sequence[Call], native: Sequence[str] = (), place: str | None = None) -> dict[str, Scalar]:
    """``place``: the job's own frame, where it is known better than files' short names tell. Unknown ones are None."""
    own = own_call(calls)
    if place is not None:
        own = next((call for call in calls if place_of(call) == place), own)
    elif own is not None:
        place = place_of(own)
    inside = calls[: calls.index(own)] if own is not None else calls
    collective = collective_in(inside, native)
    return {
        "top": calls[0].name if calls else native[0] if native else None,
        "place": place,
        "collective": collective,
        "waits": "gpu" if collective is None and waits_for_gpu(inside, native) else None,
        "frames": ";".join(call.name for call in calls) or None,
        "native": ";".join(native) or None,
    }
