"""A stored value that cannot be read fails the turn with words and leaves the session usable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dex import Codec, Value
from session_harness import (
    FunctionRunner,
    RunningSession,
    answer,
    ask,
    outcomes,
    running_session,
    tool_call,
)

from dex_agents import (
    AgentEventType,
    AgentMessage,
    AgentToolCall,
    AgentTurnContext,
    AgentTurnOutcome,
    ToolEffect,
    agent_codecs,
)
from dex_agents.testing import wait_until

#: What a stored value may look like to a release that cannot read it.
SPOILED: dict[str, Callable[[dict[str, Any]], str]] = {
    "truncated": lambda data: json.dumps(data)[:-5],
    "newer": lambda data: json.dumps({**data, "format_version": 99}),
    "unknown": lambda data: json.dumps({**data, "role": "oracle", "status": "dreaming"}),
    "incomplete": lambda data: json.dumps({k: v for k, v in data.items() if k != "turn_id"}),
}


class SpoilingCodec:
    """Sees values whose name is that of a way to be spoiled as if they had been stored like that.

    Args:
        kind: The type of the values.
        name: Field that holds the name.
        only: Whether a value of that name is spoiled.
    """

    def __init__(
        self, kind: type, name: str, only: Callable[[dict[str, Any]], bool] = lambda data: True
    ) -> None:
        self._inner: Codec[Any] = agent_codecs()[kind]
        self._name = name
        self._only = only
        self.type_name = self._inner.type_name
        self.wire_kind = self._inner.wire_kind

    def encode(self, value: Any) -> Value:
        return self._inner.encode(value)

    def decode(self, value: Value) -> Any:
        assert isinstance(value.data, str)
        data = json.loads(value.data)
        spoil = SPOILED.get(data[self._name])
        if spoil is not None and self._only(data):
            return self._inner.decode(Value(value.kind, spoil(data)))
        return self._inner.decode(value)


def sessions_of(session: RunningSession) -> dict[str, RunningSession]:
    """One session for each way to be spoiled."""
    return {name: RunningSession(session.app, session.flow, name) for name in SPOILED}


async def error_of(session: RunningSession, turn: str) -> str:
    """Wait for a turn to fail, and return why; the snapshot may be unreadable as well."""
    events = await session.events_until(AgentEventType.TURN_FAILED, turn)
    return str(events[-1].payload["error"])


@pytest.mark.requirement("CORE-STORE-11")
async def test_an_unreadable_message_costs_no_model_call_and_nothing_is_replaced(
    tmp_path: Path,
) -> None:
    async with running_session(tmp_path, FunctionRunner()) as first:
        for name, session in sessions_of(first).items():
            await session.start(name)
            await session.turn_ended(1)
    runner = FunctionRunner()
    codecs = {AgentMessage: SpoilingCodec(AgentMessage, "text")}
    async with running_session(tmp_path, runner, codecs=codecs) as second:
        for session in sessions_of(second).values():
            await session.send("two")
            error = await error_of(session, "turn-2")
            assert error.startswith("UnreadableValue: the stored message 1 cannot be read")
    assert runner.turns == []
    async with running_session(tmp_path, FunctionRunner()) as third:
        for name, session in sessions_of(third).items():
            await session.send("three")
            snapshot = await session.turn_ended(3)
            texts = [message.text for message in snapshot.messages]
            assert texts == [name, f"echo {name}", "two", "three", "echo three"]


@pytest.mark.requirement("CORE-STORE-11")
async def test_an_unreadable_record_fails_the_turn_and_the_next_one_knows_that_a_call_is_missing(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        name = turn.messages[-1].text
        if turn.is_resuming:
            return answer(" ".join(outcomes(turn)))
        return ask(tool_call("c1", name, ToolEffect.NON_IDEMPOTENT_WRITE, "{}", False))

    def is_done(data: dict[str, Any]) -> bool:
        return data["status"] == "succeeded"

    runner = FunctionRunner(model)
    codecs = {AgentToolCall: SpoilingCodec(AgentToolCall, "tool_name", is_done)}
    async with running_session(tmp_path, runner, codecs=codecs) as opened:
        for name, session in sessions_of(opened).items():
            await session.start(name)
            error = await error_of(session, "turn-1")
            assert error.startswith("UnreadableValue: the stored record of tool call 'c1'")
            await session.send("look")
            snapshot = await session.turn_ended(2)
            assert snapshot.messages[-1].text == "look ran"
            note = snapshot.messages[1].text
            assert "1 further tool call" in note
    assert len(runner.executions) == 2 * len(SPOILED)


@pytest.mark.requirement("CORE-STORE-11")
@pytest.mark.parametrize("requires_approval", [False, True])
async def test_a_call_whose_record_cannot_be_read_is_not_run_and_fails_its_turn(
    tmp_path: Path, requires_approval: bool
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return answer(" ".join(outcomes(turn)))
        write = ToolEffect.NON_IDEMPOTENT_WRITE
        name = turn.messages[-1].text
        return ask(
            tool_call("c1", name, write, "{}", requires_approval),
            tool_call("c2", "look"),
        )

    runner = FunctionRunner(model)
    codecs = {AgentToolCall: SpoilingCodec(AgentToolCall, "tool_name")}
    async with running_session(tmp_path, runner, codecs=codecs) as session:
        await session.start("newer")
        if requires_approval:
            assert await answered(session)
        error = await error_of(session, "turn-1")
        assert error.startswith("UnreadableValue: the stored record of tool call 'c1'")
        assert [call.tool_call.tool_call_id for call in runner.executions] == ["c2"]
        await session.send("look")
        if requires_approval:
            await session.resolve("c1", True)
        snapshot = await session.turn_ended(2)
    assert "look {} -> succeeded: look ran" in snapshot.messages[1].text
    assert snapshot.messages[-1].text == "look ran look ran"
    assert snapshot.pending_interrupts == ()


async def answered(session: RunningSession) -> bool:
    """Answer the question as soon as it is asked; its record cannot be shown."""

    async def answer_it() -> bool:
        return await session.client.resolve_interrupt(
            session.session_id, "turn-1~c1", approved=True
        )

    return await wait_until("the answer to be taken", answer_it, interval=0.02)
