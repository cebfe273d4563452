"""The messages of remote write 1.0 and 2.0 and of Loki's push, as the official protobuf runtime makes them from their fields."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "double": _Field.TYPE_DOUBLE,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}
Messages = dict[str, dict[str, tuple[int, str]]]
"""Message -> field -> (number, kind); ``*`` before a kind: repeated; ``!``: repeated, not packed."""

_FIRST: Messages = {
    "WriteRequest": {"timeseries": (1, "*TimeSeries"), "metadata": (3, "*MetricMetadata")},
    "TimeSeries": {"labels": (1, "*Label"), "samples": (2, "*Sample"), "exemplars": (3, "*Exemplar"), "histograms": (4, "*Histogram")},
    "Label": {"name": (1, "bytes"), "value": (2, "bytes")},
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "Exemplar": {"labels": (1, "*Label"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Histogram": {"count_int": (1, "uint64"), "sum": (3, "double"), "timestamp": (15, "int64")},
    "MetricMetadata": {"type": (1, "int32"), "metric_family_name": (2, "string"), "help": (4, "string"), "unit": (5, "string")},
}  # fmt: skip
_SECOND: Messages = {
    "Request": {"symbols": (4, "*bytes"), "timeseries": (5, "*TimeSeries")},
    "TimeSeries": {
        "labels_refs": (1, "*uint32"), "samples": (2, "*Sample"), "histograms": (3, "*Histogram"),
        "exemplars": (4, "*Exemplar"), "metadata": (5, "Metadata"), "created_timestamp": (6, "int64"),
    },
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
    "Exemplar": {"labels_refs": (1, "*uint32"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Histogram": {"count_int": (1, "uint64"), "sum": (3, "double"), "timestamp": (15, "int64")},
    "Metadata": {"type": (1, "int32"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
}  # fmt: skip
_PUSH: Messages = {
    "PushRequest": {"streams": (1, "*Stream")},
    "Stream": {"labels": (1, "string"), "entries": (2, "*Entry"), "hash": (3, "uint64")},
    "Entry": {"timestamp": (1, "Timestamp"), "line": (2, "string"), "structuredMetadata": (3, "*Pair")},
    "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Pair": {"name": (1, "string"), "value": (2, "string")},
}


def _message_classes(package: str, messages: Messages) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, bare = kind[0] in "*!", kind.lstrip("*!")
            made = message.field.add(
                name=field, number=number, label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            )
            if bare in _KINDS:
                made.type = _KINDS[bare]
            else:
                made.type, made.type_name = _Field.TYPE_MESSAGE, f".{package}.{bare}"
            if kind[0] == "!":
                made.options.packed = False
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


FIRST = _message_classes("first", _FIRST)
SECOND = _message_classes("second", _SECOND)
UNPACKED = _message_classes(
    "unpacked", _SECOND | {"TimeSeries": _SECOND["TimeSeries"] | {"labels_refs": (1, "!uint32")}}
)
PUSH = _message_classes("push", _PUSH)
