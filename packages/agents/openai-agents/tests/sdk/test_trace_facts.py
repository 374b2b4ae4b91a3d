"""What the SDK's tracing does by itself, and what it keeps over a resume."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.tracing import TracingProcessor, traces
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from sdk_runs import USER, approved
from stepped_session import call, response, says, script
from wire_conditions import Way
from wire_session import provider


@function_tool(needs_approval=True)
def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


class Log(TracingProcessor):
    """Remembers traces and spans in the order of their beginnings and ends."""

    def __init__(self) -> None:
        self.traces: list[str] = []
        self.spans: list[Any] = []
        self.exported: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(f"start {trace.trace_id}")
        self.exported.append(trace)

    def on_trace_end(self, trace: Any) -> None:
        self.traces.append(f"end {trace.trace_id}")

    def on_span_start(self, span: Any) -> None:
        return None

    def on_span_end(self, span: Any) -> None:
        self.spans.append(span)

    def shutdown(self) -> None:
        return None

    def force_flush(self) -> None:
        return None


@pytest.fixture
def log() -> Iterator[Log]:
    """Tracing into a log, and nowhere else."""
    log = Log()
    set_trace_processors([log])
    set_tracing_disabled(False)
    yield log
    set_tracing_disabled(True)
    set_trace_processors([])


@pytest.mark.soak
@pytest.mark.sdk_fact("trace.nothing-at-import")
def test_importing_the_sdk_starts_no_thread() -> None:
    code = "import threading, agents; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.sdk_fact("trace.first-run-starts-a-thread", "trace.nothing-without-a-key")
async def test_the_first_run_starts_one_thread_which_sends_nothing_without_a_key(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_request: httpx2.Request) -> httpx2.Response:
        raise AssertionError("sent something")

    exporter = BackendSpanExporter()
    exporter._client = httpx2.Client(transport=httpx2.MockTransport(refuse))
    processor = BatchTraceProcessor(exporter)
    set_trace_processors([processor])
    before = set(threading.enumerate())
    await Runner.run(Agent(name="A", model=script(response(says("a")))), USER)
    assert [thread.daemon for thread in set(threading.enumerate()) - before] == [True]
    processor.force_flush()
    processor.shutdown()
    assert caplog.text.count("OPENAI_API_KEY is not set") == 1


def exporting(log: Log, handler: Any) -> None:
    """Send what was logged, as the SDK's own exporter does."""
    exporter = BackendSpanExporter(api_key="unused", base_delay=0.0, max_delay=0.0)
    exporter._client = httpx2.Client(transport=httpx2.MockTransport(handler))
    exporter.export([*log.exported, *log.spans])


@pytest.mark.sdk_fact("trace.prompts-are-sent-with-a-key")
@pytest.mark.parametrize("is_included", [True, False])
async def test_an_exporter_with_a_key_sends_prompts_and_answers_unless_told_not_to(
    is_included: bool, log: Log
) -> None:
    sent: list[str] = []

    def collect(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content.decode())
        return httpx2.Response(200)

    question: list[Any] = [{"role": "user", "content": "the question"}]
    async with provider(Way("chat", streams=False), {"text": "the answer"}) as (_server, config):
        config.tracing_disabled = False
        config.trace_include_sensitive_data = is_included
        await Runner.run(Agent(name="A"), question, run_config=config)
    exporting(log, collect)
    [body] = sent
    assert ("the question" in body, "the answer" in body) == (is_included, is_included)


@pytest.mark.sdk_fact("trace.unreachable-collector-is-tried-again")
async def test_an_exporter_whose_collector_cannot_be_reached_tries_again_and_gives_up(
    log: Log,
) -> None:
    attempts: list[str] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        attempts.append(request.url.path)
        raise httpx2.ConnectError("no network")

    await Runner.run(Agent(name="A", model=script(response(says("a")))), USER)
    exporting(log, refuse)
    assert len(attempts) == 3


@pytest.mark.sdk_fact("trace.off-means-nothing")
async def test_a_run_with_tracing_disabled_tells_no_processor(log: Log) -> None:
    agent = Agent(name="A", model=script(response(says("a"))))
    await Runner.run(agent, USER, run_config=RunConfig(tracing_disabled=True))
    assert (log.traces, log.spans) == ([], [])


CONFIG = RunConfig(trace_id=f"trace_{'a' * 32}", group_id="session-1", workflow_name="flow")


@pytest.mark.sdk_fact(
    "trace.id-and-group-can-be-given", "trace.state-carries-the-trace", "trace.gates-have-spans"
)
@pytest.mark.parametrize("is_same_process", [True, False])
async def test_a_resumed_run_is_part_of_the_trace_it_began_in(
    is_same_process: bool, log: Log
) -> None:
    model = script(response(call("look", "c1", x=1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[look])
    stopped = await Runner.run(agent, USER, run_config=CONFIG)
    once = [f"start {CONFIG.trace_id}", f"end {CONFIG.trace_id}"]
    assert log.traces == once
    assert log.exported[0].export()["group_id"] == "session-1"
    if not is_same_process:
        # All that a process remembers of the traces it has begun.
        traces._started_trace_ids.clear()
    await Runner.run(agent, await approved(agent, stopped))
    assert log.traces == (once if is_same_process else [*once, *once])
    assert {span.trace_id for span in log.spans} == {CONFIG.trace_id}
    functions = [span for span in log.spans if span.span_data.type == "function"]
    names = [span.span_data.name for span in functions]
    assert names == ["look", "look"], "one where the run stopped, one where the gate answered"
