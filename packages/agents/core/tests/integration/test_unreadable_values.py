"""A stored value that cannot be read fails the turn with words and leaves the session usable."""

from __future__ import annotations

from pathlib import Path

import pytest
from dex import Codec, Value
from session_harness import FunctionRunner, running_session

from dex_agents import AgentEventType, AgentMessage, agent_codecs


class BrokenCodec:
    """Reads messages except the one with this text, as if another release had stored it."""

    def __init__(self, text: str) -> None:
        self._inner: Codec[AgentMessage] = agent_codecs()[AgentMessage]
        self._text = text
        self.type_name = self._inner.type_name
        self.wire_kind = self._inner.wire_kind

    def encode(self, value: AgentMessage) -> Value:
        return self._inner.encode(value)

    def decode(self, value: Value) -> AgentMessage:
        message = self._inner.decode(value)
        if message.text == self._text:
            raise ValueError("an item of an unknown kind")
        return message


@pytest.mark.requirement("CORE-STORE-11")
async def test_an_unreadable_message_costs_no_model_call_and_nothing_is_replaced(
    tmp_path: Path,
) -> None:
    async with running_session(tmp_path, FunctionRunner()) as session:
        await session.start("poison")
        await session.turn_ended(1)
    runner = FunctionRunner()
    codecs = {AgentMessage: BrokenCodec("poison")}
    async with running_session(tmp_path, runner, codecs=codecs) as session:
        await session.send("two")
        events = await session.events_until(AgentEventType.TURN_FAILED, "turn-2")
        error = str(events[-1].payload["error"])
        assert "message 1" in error
        assert "an item of an unknown kind" in error
    assert runner.turns == []
    async with running_session(tmp_path, FunctionRunner()) as session:
        await session.send("three")
        snapshot = await session.turn_ended(3)
    assert [m.text for m in snapshot.messages] == [
        "poison",
        "echo poison",
        "two",
        "three",
        "echo three",
    ]
