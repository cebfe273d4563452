"""The messages of Loki's push and of remote write 2.0 as data, with only the fields that are read.

Text is declared as bytes, so that invalid UTF-8 in one label or line does not reject the whole push.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
}
Messages = dict[str, dict[str, tuple[int, str]]]
"""Message -> field -> (number, type); ``*`` before a type: repeated."""

_PUSH: Messages = {
    "PushRequest": {"streams": (1, "*Stream")},
    "Stream": {"labels": (1, "bytes"), "entries": (2, "*Entry")},
    "Entry": {"timestamp": (1, "Timestamp"), "line": (2, "bytes"), "metadata": (3, "*Pair")},
    "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Pair": {"name": (1, "bytes"), "value": (2, "bytes")},
}
_WRITE: Messages = {
    "Symbols": {"symbols": (4, "*bytes")},
    "Request": {"timeseries": (5, "*TimeSeries")},
    "TimeSeries": {
        "labels_refs": (1, "*uint32"),
        "samples": (2, "*Sample"),
        "histograms": (3, "*bytes"),
        "exemplars": (4, "*bytes"),
    },
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
}


def _classes(package: str, messages: Messages) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _Field.LABEL_REPEATED if kind[0] == "*" else _Field.LABEL_OPTIONAL
            added, kind = message.field.add(name=field, number=number, label=label), kind.lstrip("*")
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


PushRequest = _classes("trackside.loki", _PUSH)["PushRequest"]
_write = _classes("trackside.write", _WRITE)
Symbols, WriteRequest = _write["Symbols"], _write["Request"]
"""A request of remote write 2.0 is read twice: its symbols, then its series, which may stand before them."""
