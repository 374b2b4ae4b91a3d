"""What the tracing of several processes saw: each writes a file of its own, tests read them all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.tracing import Span, Trace, TracingProcessor


class SpanFile(TracingProcessor):
    """Appends each beginning and end of a span to a file of this process, at once.

    Args:
        folder: Where the files of all processes are.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.jsonl"

    def on_trace_start(self, trace: Trace) -> None:
        exported = trace.export() or {}
        self._note("trace", trace.trace_id, group=exported.get("group_id"), name=trace.name)

    def on_trace_end(self, trace: Trace) -> None:
        return None

    def on_span_start(self, span: Span[Any]) -> None:
        self._note(
            "start",
            span.span_id,
            trace=span.trace_id,
            parent=span.parent_id,
            kind=span.span_data.type,
            name=getattr(span.span_data, "name", None),
        )

    def on_span_end(self, span: Span[Any]) -> None:
        self._note("end", span.span_id)

    def shutdown(self) -> None:
        return None

    def force_flush(self) -> None:
        return None

    def _note(self, what: str, identifier: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "id": identifier, **facts}) + "\n"
        # One write, so that a kill never leaves a part of a line.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class SeenSpan:
    """A span.

    Attributes:
        span_id: Its id.
        process: Name of the file of the process it began in.
        trace: Id of its trace.
        parent: Id of the span around it.
        kind: Type of its data.
        name: Of the agent or tool.
        ends: How often it ended, over all processes.
    """

    span_id: str
    process: str
    trace: str
    parent: str | None
    kind: str
    name: str | None
    ends: int


@dataclass(frozen=True)
class SeenTrace:
    """A trace that a process began.

    Attributes:
        trace_id: Its id.
        process: Name of the file of the process.
        group: What it belongs to.
        name: Of the workflow.
    """

    trace_id: str
    process: str
    group: str | None
    name: str


def read_spans(folder: Path) -> tuple[list[SeenTrace], list[SeenSpan]]:
    """Return what all processes saw."""
    lines = [
        (path.name, json.loads(line))
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    ends = [line["id"] for _, line in lines if line["what"] == "end"]
    traces = [
        SeenTrace(line["id"], process, line["group"], line["name"])
        for process, line in lines
        if line["what"] == "trace"
    ]
    spans = [
        SeenSpan(
            line["id"],
            process,
            line["trace"],
            line["parent"],
            line["kind"],
            line["name"],
            ends.count(line["id"]),
        )
        for process, line in lines
        if line["what"] == "start"
    ]
    return traces, spans
