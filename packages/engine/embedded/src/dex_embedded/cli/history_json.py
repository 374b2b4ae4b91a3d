"""Protocol messages as natural JSON.

A history event keeps its canonical protobuf JSON with two changes: `type` names it, and what it
tells is under `payload`. Values inside become what they stand for: a string, a number, a document.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from dex.dexpb import dex_pb2 as pb
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_TYPE_OF: Final = {
    "flow_started_or_continued": "FlowStartedOrContinued",
    "flow_closed": "FlowClosed",
    "step_wait_for_completed": "StepWaitForCompleted",
    "step_wait_for_failed": "StepWaitForFailed",
    "step_execute_completed": "StepExecuteCompleted",
    "step_execute_failed": "StepExecuteFailed",
    "step_wait_for_pending": "StepWaitForPending",
    "step_execute_pending": "StepExecutePending",
    "rpc_execution_completed": "RpcExecutionCompleted",
    "channel_external_publish": "ChannelExternalPublish",
    "channel_external_delete": "ChannelExternalDelete",
    "time_travel_fork": "TimeTravelFork",
}


def event_to_json(event: pb.FlowHistoryEvent) -> dict[str, Any]:
    """One event: `eventId`, `eventTime`, `runAttempt`, `type` and `payload`."""
    kind = event.WhichOneof("payload")
    head = pb.FlowHistoryEvent()
    head.CopyFrom(event)
    if kind is not None:
        head.ClearField(kind)
    document: dict[str, Any] = json_format.MessageToDict(head)
    document["type"] = _TYPE_OF.get(kind or "", "Unspecified")
    known = kind is not None and kind in _TYPE_OF
    document["payload"] = values_to_json(getattr(event, kind)) if known and kind else None
    return document


def values_to_json(message: Message) -> Any:
    """Canonical JSON of a message, with every `Value` in it in its natural form."""
    if isinstance(message, pb.Value):
        return _value(message)
    document: dict[str, Any] = {}
    for field, content in message.ListFields():
        document[field.json_name] = _field(field, content)
    if not document or message.DESCRIPTOR.full_name.startswith("google.protobuf."):
        return json_format.MessageToDict(message)
    return document


def _field(field: FieldDescriptor, content: Any) -> Any:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        value_field = entry.fields_by_name["value"]
        return {str(key): _single(value_field, item) for key, item in content.items()}
    if isinstance(content, str | bytes | Message) or not hasattr(content, "__len__"):
        return _single(field, content)
    return [_single(field, item) for item in content]


def _single(field: FieldDescriptor, content: Any) -> Any:
    if isinstance(content, Message):
        return values_to_json(content)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(content)
        return named.name if named is not None else content
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if (
        isinstance(content, int)
        and not isinstance(content, bool)
        and field.cpp_type
        in (
            FieldDescriptor.CPPTYPE_INT64,
            FieldDescriptor.CPPTYPE_UINT64,
        )
    ):
        return str(content)
    return content


def _value(value: pb.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "obj_value":
        encoded = value.obj_value
        if encoded.encoding == "json":
            try:
                return json.loads(encoded.payload)
            except ValueError:
                pass
        payload = base64.b64encode(encoded.payload).decode()
        return {"encoding": encoded.encoding, "payload": payload}
    if kind.startswith("internal_blob"):
        return {"__dexBlobReference": {"id": getattr(value, kind), "kind": kind}}
    return getattr(value, kind)
