"""The event writer: safe from any thread, batched by time, silent after the Step has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dex_agents import AgentEvent, AgentEventType, AgentEventWriter
from dex_agents.events import MAX_DELTA_CHARACTERS
from dex_agents.testing import wait_until

FAR = 3600.0


class Written:
    """A Stream that notes what is written, and on which thread."""

    def __init__(self, delta_interval: float = FAR) -> None:
        self.events: list[AgentEvent] = []
        self.threads: set[int] = set()
        self.writer = AgentEventWriter(
            self._write,
            turn_id="turn-1",
            step_execution_id="RunModel-1",
            attempt=2,
            delta_interval=delta_interval,
        )

    def _write(self, event: AgentEvent) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)

    @property
    def short(self) -> list[tuple[str, object]]:
        return [(e.type.value, next(iter(e.payload.values()))) for e in self.events]


@pytest.mark.requirement("CORE-EVENT-02", "CORE-EVENT-12", "CORE-EVENT-15")
async def test_deltas_are_joined_until_another_event_or_the_end() -> None:
    written = Written()
    written.writer.write_text_delta("Hel")
    written.writer.write_text_delta("lo")
    written.writer.write_reasoning_delta("hm")
    written.writer.write_text_delta("!")
    written.writer.write_tool_call_started("c1", "look")
    written.writer.write_text_delta("bye")
    written.writer.close()
    assert written.short == [
        ("text_delta", "Hello"),
        ("reasoning_delta", "hm"),
        ("text_delta", "!"),
        ("tool_call_started", "c1"),
        ("text_delta", "bye"),
    ]
    assert {(e.turn_id, e.step_execution_id, e.attempt) for e in written.events} == {
        ("turn-1", "RunModel-1", 2)
    }


@pytest.mark.requirement("CORE-EVENT-12")
async def test_deltas_go_out_by_themselves_after_the_interval() -> None:
    written = Written(delta_interval=0.01)
    written.writer.write_text_delta("Hel")
    written.writer.write_text_delta("lo")
    await wait_until("the delta", lambda: written.events, interval=0.005)
    written.writer.write_text_delta("again")
    await wait_until("the next delta", lambda: len(written.events) == 2, interval=0.005)
    assert [text for _, text in written.short] == ["Hello", "again"]


@pytest.mark.requirement("CORE-EVENT-06")
async def test_an_event_that_is_no_delta_goes_out_without_waiting() -> None:
    written = Written()
    written.writer.write_tool_call_finished("c1", "look", "failed")
    await wait_until("the event", lambda: written.events, interval=0.005)
    assert written.events[0].payload == {
        "tool_call_id": "c1",
        "tool_name": "look",
        "status": "failed",
    }


@pytest.mark.requirement("CORE-EVENT-10")
async def test_writes_from_many_threads_arrive_on_the_loop_and_none_is_lost() -> None:
    written = Written(delta_interval=0.001)

    def talk(name: str) -> None:
        for number in range(200):
            written.writer.write_event(AgentEventType.USAGE_RECORDED, {"name": f"{name}{number}"})
            written.writer.write_text_delta("x")

    await asyncio.gather(*(asyncio.to_thread(talk, name) for name in "abcd"))
    written.writer.close()
    assert written.threads == {threading.get_ident()}
    names = [str(v) for kind, v in written.short if kind == "usage_recorded"]
    assert sorted(names) == sorted(f"{name}{n}" for name in "abcd" for n in range(200))
    for name in "abcd":
        assert [n for n in names if n.startswith(name)] == [f"{name}{n}" for n in range(200)]
    text = "".join(str(v) for kind, v in written.short if kind == "text_delta")
    assert text == "x" * 800


@pytest.mark.requirement("CORE-EVENT-11")
async def test_nothing_is_written_after_the_end() -> None:
    written = Written()
    written.writer.close()
    written.writer.close()
    written.writer.write_text_delta("late")
    await asyncio.to_thread(written.writer.write_tool_call_started, "c1", "look")
    written.writer.flush()
    await asyncio.sleep(0)
    assert written.events == []


@pytest.mark.requirement("CORE-EVENT-12")
async def test_a_long_text_is_split_and_an_empty_one_is_no_event() -> None:
    written = Written()
    written.writer.write_text_delta("")
    written.writer.write_text_delta("x" * (2 * MAX_DELTA_CHARACTERS + 5))
    written.writer.close()
    sizes = [len(str(text)) for _, text in written.short]
    assert sum(sizes) == 2 * MAX_DELTA_CHARACTERS + 5
    assert max(sizes) <= MAX_DELTA_CHARACTERS


@pytest.mark.requirement("CORE-EVENT-13")
async def test_an_event_that_cannot_be_written_is_dropped_and_the_next_one_arrives() -> None:
    events: list[AgentEvent] = []

    def write(event: AgentEvent) -> None:
        if event.type is AgentEventType.TOOL_CALL_STARTED:
            raise ValueError("cannot be encoded")
        events.append(event)

    writer = AgentEventWriter(write, turn_id="t", step_execution_id="s", attempt=1)
    writer.write_tool_call_started("c1", "look")
    writer.write_text_delta("on we go")
    writer.close()
    assert [e.payload for e in events] == [{"text": "on we go"}]


async def test_a_writer_outlives_its_loop_without_raising() -> None:
    def write_on_another_loop() -> AgentEventWriter:
        async def make() -> AgentEventWriter:
            return Written().writer

        return asyncio.run(make())

    writer = await asyncio.to_thread(write_on_another_loop)
    writer.write_text_delta("nobody listens")
    writer.write_text_delta("still nobody")
