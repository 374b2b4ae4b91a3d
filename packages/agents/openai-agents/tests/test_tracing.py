"""Traces of a session whose worker is killed, put together from what every process saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from span_log import SeenSpan, read_spans
from wire_agent import FLOW, MODEL_VARIABLE, SPANS_VARIABLE

from dex_agents.testing import StartProcess
from dex_agents_testkit.faults import CrashableAgent
from dex_agents_testkit.model_server import serve_model_script

MakeAgent = Callable[..., CrashableAgent]

LOOK = {"name": "look", "arguments": {"x": "7"}, "call_id": "c-look"}
PAY = {"name": "pay", "arguments": {"order": "7"}, "call_id": "c-pay"}
DONE = {"text": "Done."}
SCRIPT: dict[str, Any] = {
    "turns": [
        {"replies": [{"tool_calls": [LOOK, PAY]}, {**DONE, "faults": [{"status": 500}]}]},
        {"replies": [{"tool_calls": [LOOK]}, DONE]},
    ]
}


def cut(spans: list[SeenSpan]) -> list[SeenSpan]:
    return [span for span in spans if not span.ends]


async def test_case_38_the_trace_of_a_turn_is_whole_over_killed_workers(
    crashable_agent: MakeAgent, start: StartProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "spans"
    async with serve_model_script(SCRIPT) as model:
        env = {MODEL_VARIABLE: model.base_url, SPANS_VARIABLE: str(folder)}
        async with crashable_agent(FLOW, start=start, env=env) as agent:
            agent.kill_at("looking")
            await agent.say("s", "go")
            await agent.answer("s", approved=True)
            await agent.turn_ended("s")
            # The Step that resumes the second turn, whose recorded call is in the trace by then.
            agent.kill_at("instructing", occurrence=2)
            await agent.say("s", "go on")
            await agent.turn_ended("s", 2)
    traces, spans = read_spans(folder)

    assert len({trace.process for trace in traces}) == 3
    assert len({trace.trace_id for trace in traces}) == 2, "one for each turn"
    assert {trace.group for trace in traces} == {"s"}
    assert len({trace.name for trace in traces}) == 1
    assert {span.trace for span in spans} == {trace.trace_id for trace in traces}
    known = {span.span_id: span for span in spans}
    assert len(known) == len(spans), "no id is given twice, whatever process gives it"
    for span in spans:
        assert span.ends <= 1
        if span.parent is not None:
            # A Step never continues a span of another Step, which may have ended with its process.
            assert known[span.parent].process == span.process
    for span in cut(spans):
        assert span.parent is None or not known[span.parent].ends, "what is around it is cut too"
    # Each kill cut one Step, and the Step that took its place is whole.
    roots = [span for span in cut(spans) if span.parent is None]
    assert len(roots) == 2
    bodies = Counter(span.name for span in spans if span.kind == "function" and span.ends)
    assert bodies["pay"] >= 1
    assert bodies["look"] >= 2
