"""Summaries and search results as messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from dex.dexpb import dex_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from dex_embedded._kernel.values import IndexType
from dex_embedded._store.protocol import IndexedValue, RunSummary, SearchPage
from dex_embedded._wire.history import flow_status


def encode_summary(summary: RunSummary) -> pb.GetFlowSummaryResponse:
    return pb.GetFlowSummaryResponse(
        flow_execution_id=pb.FlowExecutionID(flow_id=summary.flow_id, run_id=summary.run_id),
        first_run_id=summary.first_run_id,
        request_id=summary.request_id,
        flow_type=summary.flow_type,
        flow_status=flow_status(summary.status),
        start_time=_timestamp(summary.started_at),
        close_time=_timestamp(summary.closed_at),
        run_attempt=summary.run_attempt,
    )


def encode_search_page(page: SearchPage) -> pb.SearchFlowsResponse:
    response = pb.SearchFlowsResponse(next_page_token=page.next)
    for found in page.runs:
        summary = found.summary
        response.flow_runs.add(
            flow_id=summary.flow_id,
            run_id=summary.run_id,
            flow_type=summary.flow_type,
            flow_status=flow_status(summary.status),
            start_time=_timestamp(summary.started_at),
            close_time=_timestamp(summary.closed_at),
            indexed_attributes=[
                pb.KV(key=entry.index_key, value=_value(entry)) for entry in found.indexed
            ],
        )
    return response


def _timestamp(moment: float | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromNanoseconds(int(moment * 1e9))
    return stamp


def _value(entry: IndexedValue) -> pb.Value:
    value = entry.value
    if isinstance(value, tuple):
        payload = json.dumps(value, separators=(",", ":")).encode()
        return pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=payload))
    if isinstance(value, bool):
        return pb.Value(bool_value=value)
    if entry.type is IndexType.DATETIME and not isinstance(value, str):
        return pb.Value(string_value=datetime.fromtimestamp(value, UTC).isoformat())
    if isinstance(value, int):
        return pb.Value(int_value=value)
    if isinstance(value, float):
        return pb.Value(double_value=value)
    return pb.Value(string_value=value)
