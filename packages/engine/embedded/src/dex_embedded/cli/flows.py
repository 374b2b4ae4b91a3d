"""The `flow` commands: clients of a running engine, over the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, cast

from dex.dexpb import dex_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from dex_embedded._wire.client import EngineTarget, connect
from dex_embedded.cli.history_json import event_to_json, values_to_json

if TYPE_CHECKING:
    from rich.table import Table

STOP_TYPES: Final = {
    "cancel": pb.STOP_TYPE_CANCEL,
    "terminate": pb.STOP_TYPE_TERMINATE,
    "fail": pb.STOP_TYPE_FAIL,
}
_TIMEOUT: Final = 30.0
_PAGE: Final = 200


async def list_flows(target: EngineTarget, query: str, limit: int, *, as_json: bool) -> None:
    found: list[pb.SearchFlowsResponseEntry] = []
    token = ""
    async with connect(target) as stub:
        while len(found) < limit:
            request = pb.SearchFlowsRequest(
                query=query, page_size=min(limit - len(found), 1000), next_page_token=token
            )
            page: pb.SearchFlowsResponse = await stub.SearchFlows(request, timeout=_TIMEOUT)
            found.extend(page.flow_runs)
            token = page.next_page_token
            if not token:
                break
    if as_json:
        print(json.dumps({"flows": [values_to_json(entry) for entry in found]}))
        return
    table = _table("flow", "type", "status", "started", "closed", "indexed")
    for entry in found:
        indexed = ", ".join(
            f"{pair.key}={json.dumps(values_to_json(pair.value), ensure_ascii=False)}"
            for pair in entry.indexed_attributes
        )
        table.add_row(
            entry.flow_id,
            entry.flow_type,
            _status(entry.flow_status),
            _time(entry.start_time),
            _time(entry.close_time) if entry.HasField("close_time") else "",
            indexed,
        )
    _print(table)


async def show_history(target: EngineTarget, flow_id: str, run_id: str, *, as_json: bool) -> None:
    events: list[pb.FlowHistoryEvent] = []
    token, next_id = b"", 0
    async with connect(target) as stub:
        if not run_id:
            summary = await stub.GetFlowSummary(
                pb.GetFlowSummaryRequest(flow_id=flow_id), timeout=_TIMEOUT
            )
            run_id = summary.flow_execution_id.run_id
        while True:
            request = pb.GetHistoryEventsRequest(
                flow_id=flow_id, run_id=run_id, estimate_page_size=_PAGE, next_page_token=token
            )
            page: pb.GetHistoryEventsResponse = await stub.GetHistoryEvents(
                request, timeout=_TIMEOUT
            )
            events.extend(page.events)
            token, next_id = page.next_page_token, page.next_internal_event_id
            if not token:
                break
    if as_json:
        document = {
            "flowId": flow_id,
            "runId": run_id,
            "events": [event_to_json(event) for event in events],
            "nextPageToken": "",
            "nextInternalEventId": next_id,
        }
        print(json.dumps(document))
        return
    _print(_history_table(events))


def _history_table(events: Sequence[pb.FlowHistoryEvent]) -> Table:
    table = _table("#", "event", "step", "attempts", "duration", "worker", "detail")
    for event in events:
        kind = event.WhichOneof("payload") or ""
        payload = getattr(event, kind)
        step = attempts = duration = worker = detail = ""
        if kind.startswith("step_"):
            context: pb.StepMethodEventContext = payload.context
            step = context.step_execution_id
            attempts = str(context.final_attempt)
            duration = f"{context.duration.ToMilliseconds() / 1000:.3f} s"
            worker = context.pull_routing.served_by_app_worker_id
            if kind.endswith("failed"):
                detail = _failure(payload.output.failure)
            elif context.HasField("last_failure_info"):
                detail = f"after: {_failure(context.last_failure_info)}"
        elif kind == "rpc_execution_completed":
            step = payload.rpc_name or "SetAttributes"
            worker = payload.served_by_app_worker_id
        elif kind == "flow_closed":
            detail = " ".join(filter(None, (_status(payload.flow_status), payload.error_message)))
        name = event_to_json(event)["type"]
        table.add_row(str(event.event_id), str(name), step, attempts, duration, worker, detail)
    return table


def _failure(failure: pb.StepMethodFailure) -> str:
    details = failure.details
    return details.original_worker_error_detail or details.detail or failure.backend_error


async def show_summary(target: EngineTarget, flow_id: str, *, as_json: bool) -> None:
    async with connect(target) as stub:
        summary: pb.GetFlowSummaryResponse = await stub.GetFlowSummary(
            pb.GetFlowSummaryRequest(flow_id=flow_id), timeout=_TIMEOUT
        )
    if as_json:
        print(json.dumps(values_to_json(summary)))
        return
    table = _table()
    table.add_row("flow", summary.flow_execution_id.flow_id)
    table.add_row("run", summary.flow_execution_id.run_id)
    table.add_row("type", summary.flow_type)
    table.add_row("status", _status(summary.flow_status))
    table.add_row("started", _time(summary.start_time))
    if summary.HasField("close_time"):
        table.add_row("closed", _time(summary.close_time))
    _print(table)


async def show_state(target: EngineTarget, flow_id: str) -> None:
    async with connect(target) as stub:
        state = await stub.GetFlowState(pb.GetFlowStateRequest(flow_id=flow_id), timeout=_TIMEOUT)
    print(json.dumps(values_to_json(state)))


async def stop_flow(target: EngineTarget, flow_id: str, stop_type: str, reason: str) -> None:
    async with connect(target) as stub:
        request = pb.StopFlowRequest(
            flow_id=flow_id, reason=reason, stop_type=STOP_TYPES[stop_type]
        )
        await stub.StopFlow(request, timeout=_TIMEOUT)
    print(json.dumps({"flowId": flow_id, "stopped": True}))


def _table(*headers: str) -> Table:
    # Here, since it takes a while and `dex-embedded dev` has no use for it.
    from rich.table import Table

    return Table(*headers, show_header=bool(headers))


def _print(table: Table) -> None:
    from rich.console import Console

    # Nothing is cut when the output goes to a file or another program.
    width = None if sys.stdout.isatty() else 1_000
    Console(highlight=False, width=width).print(table)


def _status(number: int) -> str:
    name = cast(Any, pb.FlowStatus).Name(number)
    return str(name).removeprefix("FLOW_STATUS_")


def _time(stamp: Timestamp) -> str:
    return stamp.ToDatetime(tzinfo=UTC).isoformat(sep=" ", timespec="seconds")
