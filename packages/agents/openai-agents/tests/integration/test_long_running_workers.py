"""Cases of workers and sessions that live long, in full: real workers on a real engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIProvider, RunConfig
from long_running_agent import (
    ANSWER,
    COLLECT_VARIABLE,
    FLOW,
    HEARTBEAT_VARIABLE,
    MODEL_VARIABLE,
    SCRIPT,
    SECONDS_VARIABLE,
)
from openai import AsyncOpenAI

from dex_agents import (
    AgentEventType,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    AgentTurnContext,
    AgentTurnOutcome,
    FrameworkMessage,
    MessageRole,
    TurnCompleted,
)
from dex_agents.local import open_sessions
from dex_agents.testing import StartProcess, wait_for_agent_snapshot, wait_until
from dex_agents_openai_agents import OpenAIAgentsRunner, openai_agents_session_flow
from dex_agents_testkit.faults import CrashableAgent
from dex_agents_testkit.model_server import RunningModelServer, serve_model_script

MakeAgent = Callable[..., CrashableAgent]
NEEDS_SHORT_HEARTBEATS = pytest.mark.skipif(
    "DEXCLI" in os.environ, reason="needs a short heartbeat timeout"
)
HEARTBEAT_TIMEOUT = 3
BLOCKED = 8


@pytest.mark.crash
@NEEDS_SHORT_HEARTBEATS
async def test_case_16_a_write_that_blocks_its_worker_happens_once_and_the_others_finish(
    crashable_agent: MakeAgent, start: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First in a thread, which blocks nothing, then on the event loop, for all the others too."""
    monkeypatch.setenv("DEX_EMBEDDED_MINIMUM_HEARTBEAT", "1")
    ended: dict[str, AgentSnapshot] = {}
    async with serve_model_script(SCRIPT) as model:
        env = {
            MODEL_VARIABLE: model.base_url,
            SECONDS_VARIABLE: str(BLOCKED),
            HEARTBEAT_VARIABLE: str(HEARTBEAT_TIMEOUT),
        }
        async with crashable_agent(FLOW, start=start, env=env) as agent:
            for tool, place in (("wait", "waiting"), ("freeze", "freezing")):
                dozing, asleep = f"{tool} and doze", agent.reached["dozing"]
                await agent.say(dozing, "doze")
                await wait_until("another tool", lambda n=asleep: agent.reached["dozing"] > n)
                await agent.say(tool, tool)
                await agent.answer(tool, approved=True)
                await wait_until("the tool", lambda name=place: agent.reached[name] >= 1)
                late = f"{tool} and look"
                await agent.say(late, "look")
                for session in (tool, dozing, late):
                    ended[session] = await agent.turn_ended(session)
                # A later turn runs nothing again, whatever has become of its worker.
                await agent.say(tool, "look")
                await agent.turn_ended(tool, 2)
                assert agent.reached[place] == 1
    for snapshot in ended.values():
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None
        assert snapshot.messages[-1].text == ANSWER
    [waited] = outputs(model, "wait")
    assert waited["output"] == "waited", "a thread keeps no heartbeat from being sent"
    [frozen] = outputs(model, "freeze")
    assert frozen["output"] == "frozen" or "not known" in frozen["output"]


def outputs(model: RunningModelServer, user_text: str) -> list[dict[str, Any]]:
    """Return the outputs of tools in the first request that has any and came from this user."""
    for request in model.requests:
        found = [
            item for item in request.body["input"] if item.get("type") == "function_call_output"
        ]
        if found and request.conversation.user_texts[0] == user_text:
            return found
    raise AssertionError(f"no output after {user_text!r}")


async def texts_of_turns(sessions: AgentSessionClient, session_id: str, count: int) -> list[str]:
    """Return the streamed text of each turn, in order; every turn must have ended."""
    texts = [""] * count
    token, ended = "", 0
    while ended < count:
        message = await sessions.read_agent_event(session_id, token)
        token, event = message.resume_token, message.value
        number = int(event.turn_id.removeprefix("turn-"))
        if event.type is AgentEventType.TEXT_DELTA:
            texts[number - 1] += str(event.payload["text"])
        elif event.type is AgentEventType.TURN_COMPLETED:
            assert number >= ended, "turns end in order"
            ended = number
    return texts


@pytest.mark.soak
@pytest.mark.timeout(1200)
@NEEDS_SHORT_HEARTBEATS
async def test_case_33_two_hundred_turns_with_a_collection_every_ten_milliseconds_lose_nothing(
    crashable_agent: MakeAgent, start: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEX_EMBEDDED_MINIMUM_HEARTBEAT", "1")
    turns = 200
    said = ["doze" if number % 50 == 49 else "look" for number in range(turns)]
    async with serve_model_script(SCRIPT) as model:
        env = {
            MODEL_VARIABLE: model.base_url,
            SECONDS_VARIABLE: str(BLOCKED),
            HEARTBEAT_VARIABLE: str(BLOCKED - 2),
            COLLECT_VARIABLE: "1",
        }
        async with crashable_agent(FLOW, start=start, env=env) as agent:
            for number, text in enumerate(said, 1):
                await agent.say("s", text)
                snapshot = await agent.turn_ended("s", number)
                assert snapshot.state is not None
                assert snapshot.state.last_turn_error is None
            texts = await texts_of_turns(agent.sessions, "s", turns)
            dozed = agent.reached["dozing"]
    assert texts == [f"First I {text}.{ANSWER}" for text in said]
    assert dozed == said.count("doze"), "no heartbeat was lost in a tool that takes long"
    assert len(model.requests) == 2 * turns


class _Seeding:
    """A runner that stores as many messages as the user asks for, as the adapter would."""

    def __init__(self) -> None:
        self._adapter = OpenAIAgentsRunner(Agent(name="A"))

    def build_user_message(self, text: str) -> FrameworkMessage:
        return self._adapter.build_user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        first, count = len(turn.messages) + 1, int(turn.messages[-1].text)
        return TurnCompleted(
            tuple(
                FrameworkMessage(
                    MessageRole.USER,
                    self.build_user_message(f"message {sequence}").framework_item,
                    f"message {sequence}",
                )
                if sequence < first + count - 2
                else FrameworkMessage(MessageRole.ASSISTANT, ANSWERED, "noted")
                for sequence in range(first, first + count - 1)
            )
        )

    async def execute_deferred_tool_call(self, call: Any) -> Any:
        raise AssertionError("nothing is called")


ANSWERED = (
    '{"v":1,"item":{"id":"msg_1","type":"message","role":"assistant","status":"completed",'
    '"content":[{"type":"output_text","text":"noted","annotations":[]}]}}'
)


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """Let the clock of the machine that engine and worker share be another one."""

    def now(zone: tzinfo | None = UTC) -> datetime:
        return datetime.now(zone) + ahead

    for module in ("_message_steps", "_model_step", "_tool_steps", "_flow"):
        monkeypatch.setattr(f"dex_agents.session_flow.{module}.utc_now", now)
    wall = "dex_embedded._runtime.clock.SystemClock.wall"
    monkeypatch.setattr(wall, lambda _clock: now().timestamp())
    # The worker of the SDK compares the deadline of a task with its own clock.
    moved = type("Moved", (datetime,), {"now": staticmethod(now)})
    monkeypatch.setattr("dex._pull_worker.datetime", moved)


async def turn_ended(sessions: AgentSessionClient, number: int) -> AgentSnapshot:
    return await wait_for_agent_snapshot(
        sessions,
        "s",
        lambda s: s if s.state and s.state.turn_count >= number and not s.state.turn_id else None,
        description=f"the end of turn {number}",
        interval=0.1,
        timeout=300,
    )


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(500, id="short"),
        pytest.param(10_000, id="full", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
@pytest.mark.skipif("DEXCLI" in os.environ, reason="moves the clock of the embedded engine")
async def test_case_35_a_very_long_session_answers_after_a_pause_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Engine and worker start anew each time, months later and then years earlier."""
    at_a_time = 1_250
    turns = 1
    flow = AgentSessionFlow(_Seeding(), flow_type="Long")
    async with open_sessions(flow, data_dir=tmp_path) as app:
        await app.sessions(flow).start_session("s", str(min(count, at_a_time)))
        snapshot = await turn_ended(app.sessions(flow), turns)
        for left in range(count - at_a_time, 0, -at_a_time):
            turns += 1
            await app.sessions(flow).send_user_message("s", str(min(left, at_a_time)))
            snapshot = await turn_ended(app.sessions(flow), turns)
    assert snapshot.state is not None
    assert snapshot.state.message_count == count

    growth: list[int] = []
    async with (
        serve_model_script({"rules": [{"reply": {"text": ANSWER}}]}) as model,
        AsyncOpenAI(base_url=model.base_url, api_key="unused", max_retries=0) as client,
    ):
        config = RunConfig(
            model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True
        )
        for days in (100, 100 - 5 * 365):
            set_clock(monkeypatch, timedelta(days=days))
            flow = openai_agents_session_flow(Agent(name="A"), flow_type="Long", run_config=config)
            async with open_sessions(flow, data_dir=tmp_path) as app:
                for _ in range(3):
                    before, turns = stored_bytes(tmp_path), turns + 1
                    await app.sessions(flow).send_user_message("s", "still there?")
                    snapshot = await turn_ended(app.sessions(flow), turns)
                    growth.append(stored_bytes(tmp_path) - before)
                    assert snapshot.state is not None
                    assert snapshot.state.last_turn_error is None
                    assert snapshot.messages[-1].text == ANSWER
                age = snapshot.messages[-1].created_at - datetime.now(UTC)
                assert abs(age - timedelta(days=days)) < timedelta(hours=1)
    assert len(model.requests) == 6, "however long the history is, a turn calls the model once"
    for number, request in enumerate(model.requests):
        assert len(request.body["input"]) == count + 2 * number + 1, "nothing is forgotten"
    said = [item["content"] for item in model.requests[-1].body["input"] if "id" not in item]
    assert said[1:3] == ["message 2", "message 3"]
    print(f"{count} messages; bytes stored by each turn after it: {growth}")
    # Pages of the log, so much more than the text, but the same for any length of the history. The
    # first turn after a start writes more.
    assert max(growth[1:3] + growth[4:]) < 400_000
