"""What a session makes of all that a provider may do, over the real client and a real engine.

`wire_conditions` holds the table. Every cell of it is a session of its own; all of them run next to
each other, once for this file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agents import Agent, RunConfig, Runner
from openai import AsyncOpenAI
from wire_conditions import (
    CONDITIONS,
    DONE,
    LOST_TEXT,
    WAYS,
    Answers,
    Condition,
    Fails,
    TriesAgain,
    Way,
)
from wire_session import config_of, scripted

from dex_agents import AgentEventType, AgentSessionClient, AgentSnapshot
from dex_agents.local import open_sessions
from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_openai_agents import openai_agents_session_flow
from dex_agents_testkit.model_server import RecordedRequest, serve_model_script

CELLS = [(condition, way) for condition in CONDITIONS for way in condition.ways]
IDS = [f"{condition.name}-{way}" for condition, way in CELLS]


def said(condition: Condition, way: Way) -> str:
    return f"{condition.name} on {way}"


SCRIPT: dict[str, Any] = {
    "rules": [
        {
            "name": condition.name,
            "when": {"user_contains": f"{condition.name} on "},
            "reply": condition.reply,
            "faults": [] if condition.fault is None else [condition.fault],
        }
        for condition in CONDITIONS
    ]
}


@dataclass(frozen=True)
class Seen:
    """What came of one session.

    Attributes:
        snapshot: What its user sees at the end of the turn.
        requests: What the provider was asked.
        live: The streamed text, by attempt.
    """

    snapshot: AgentSnapshot
    requests: tuple[RecordedRequest, ...]
    live: dict[int, str]


async def live_text(sessions: AgentSessionClient, session_id: str) -> dict[int, str]:
    texts: dict[int, str] = {}
    token = ""
    while True:
        message = await sessions.read_agent_event(session_id, token)
        token, event = message.resume_token, message.value
        if event.type is AgentEventType.TEXT_DELTA:
            attempt = event.attempt
            texts[attempt] = texts.get(attempt, "") + str(event.payload["text"])
        elif event.type in (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED):
            return texts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[dict[tuple[str, Way], Seen]]:
    """One session for each cell of the table."""
    folder: Path = tmp_path_factory.mktemp("wire")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve_model_script(SCRIPT))
        client = await stack.enter_async_context(
            AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0)
        )
        flows = {
            way: openai_agents_session_flow(
                Agent(name="A"), flow_type=f"Wire-{way}", run_config=config_of(client, way)
            )
            for way in WAYS
        }
        app = await stack.enter_async_context(open_sessions(flows.values(), data_dir=folder))
        for condition, way in CELLS:
            text = said(condition, way)
            await app.sessions(flows[way]).start_session(text, text)
        found: dict[tuple[str, Way], Seen] = {}
        for condition, way in CELLS:
            text, sessions = said(condition, way), app.sessions(flows[way])
            snapshot = await wait_for_agent_snapshot(
                sessions,
                text,
                lambda snapshot: snapshot if snapshot.state and snapshot.state.turn_count else None,
                description=f"the end of {text!r}",
                interval=0.2,
                timeout=120,
            )
            requests = tuple(r for r in server.requests if r.conversation.user_texts == (text,))
            live = await live_text(sessions, text)
            found[condition.name, way] = Seen(snapshot, requests, live)
        yield found


@pytest.mark.parametrize(("condition", "way"), CELLS, ids=IDS)
def test_a_turn_ends_as_the_table_says(
    seen: dict[tuple[str, Way], Seen], condition: Condition, way: Way
) -> None:
    cell = seen[condition.name, way]
    state = cell.snapshot.state
    assert state is not None
    answer = cell.snapshot.messages[-1].text
    match condition.end(way):
        case Answers(text):
            assert state.last_turn_error is None
            assert answer == text
            assert len(cell.requests) == 1
        case Fails(error_type, words):
            error = state.last_turn_error or answer
            assert error.startswith(f"{error_type}: ")
            assert words in error
            assert "sk-secret" not in error
            assert len(cell.requests) == 1, "what cannot succeed is paid once"
        case TriesAgain(after):
            assert state.last_turn_error is None
            assert answer == DONE["text"]
            first, second = cell.requests
            assert second.received_at - first.received_at >= after
    if way.streams:
        shown = condition.reply.get("text") or condition.reply.get("refusal") or ""
        is_whole = isinstance(condition.end(way), Answers | TriesAgain)
        assert not is_whole or cell.live[max(cell.live)] == shown
    assert all(request.body.get("stream", False) == way.streams for request in cell.requests)


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
def test_text_of_a_lost_answer_is_told_apart_by_its_attempt(
    seen: dict[tuple[str, Way], Seen], way: Way
) -> None:
    live = seen[LOST_TEXT, way].live
    assert sorted(live) == [1, 2]
    assert live[1]
    assert DONE["text"].startswith(live[1])
    assert live[2] == DONE["text"]


async def end_of_plain_run(config: RunConfig, text: str, streams: bool) -> str:
    """Return the answer of a plain run, or the type of its error."""
    agent = Agent(name="A")
    try:
        if not streams:
            return str((await Runner.run(agent, text, run_config=config)).final_output)
        result = Runner.run_streamed(agent, text, run_config=config)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_answers_that_arrive_end_a_turn_as_in_a_plain_run(way: Way) -> None:
    ends: dict[str, str] = {}
    plain: dict[str, str] = {}
    async with scripted(way, SCRIPT) as (_, config):
        for condition in CONDITIONS:
            match condition.end(way):
                case _ if condition.fault is not None:
                    continue
                case Answers(text):
                    ends[condition.name] = text
                case Fails(error_type):
                    ends[condition.name] = error_type
                case TriesAgain():
                    raise AssertionError("nothing is broken")
            plain[condition.name] = await end_of_plain_run(
                config, said(condition, way), way.streams
            )
    assert plain == ends
    assert len(ends) == 7
