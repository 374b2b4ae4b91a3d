"""The client on a real engine: ids, paging, closed and missing sessions, search."""

from __future__ import annotations

import asyncio
import random
import string
from pathlib import Path

import pytest
from dex import Registry
from session_harness import (
    FunctionRunner,
    answer,
    ask,
    echo,
    outcomes,
    running_session,
    tool_call,
)

from dex_agents import (
    AgentSessionFlow,
    AgentStatus,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUserMessage,
    FrameworkMessage,
    InvalidMessageIdError,
    InvalidSessionIdError,
    ListAgentMessagesRequest,
    MessageRole,
    MessageTooLargeError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionNotFoundError,
    ToolEffect,
)


@pytest.mark.requirement("CORE-RPC-13")
async def test_a_message_id_that_was_sent_before_is_dropped_and_answered_true(
    tmp_path: Path,
) -> None:
    runner = FunctionRunner()
    async with running_session(tmp_path, runner) as session:
        await session.start()
        sends = [
            session.client.send_user_message(session.session_id, "only once", message_id="a/b %~")
            for _ in range(20)
        ]
        assert await asyncio.gather(*sends) == [True] * 20
        await session.turn_ended(1)
        assert await session.client.send_user_message(
            session.session_id, "only once", message_id="a/b %~"
        )
        await session.send("another")
        snapshot = await session.turn_ended(2)
    assert [m.text for m in snapshot.messages][::2] == ["only once", "another"]
    assert snapshot.messages[0].message_id == "a/b %~"


@pytest.mark.requirement("CORE-RPC-14")
async def test_an_id_is_forgotten_once_enough_later_turns_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dex_agents._session.ids.REMEMBERED_TURNS", 3)
    async with running_session(tmp_path, FunctionRunner()) as session:
        client, session_id = session.client, session.session_id
        await client.start_session(session_id, "one", message_id="first")
        for turn, message_id in ((2, "second"), (3, "third")):
            await client.send_user_message(session_id, message_id, message_id=message_id)
            await session.turn_ended(turn)
        assert await client.send_user_message(session_id, "again", message_id="first")
        await client.send_user_message(session_id, "fourth", message_id="fourth")
        snapshot = await session.turn_ended(4)
        assert [m.text for m in snapshot.messages][::2] == ["one", "second", "third", "fourth"]
        await client.send_user_message(session_id, "one again", message_id="first")
        snapshot = await session.turn_ended(5)
        assert snapshot.messages[-2].text == "one again"


@pytest.mark.requirement("CORE-RPC-15")
async def test_a_repeated_start_succeeds_and_another_start_is_refused(tmp_path: Path) -> None:
    runner = FunctionRunner()
    async with running_session(tmp_path, runner) as session:
        client, session_id = session.client, session.session_id
        starts = [client.start_session(session_id, "hi", message_id="start") for _ in range(20)]
        assert len(set(await asyncio.gather(*starts))) == 1
        with pytest.raises(SessionAlreadyExistsError) as raised:
            await client.start_session(session_id, "hi")
        assert raised.value.session_id == session_id
        # The first message's id is known from the start, so sending it again adds nothing.
        assert await client.send_user_message(session_id, "hi", message_id="start")
        await session.send("next")
        snapshot = await session.turn_ended(2)
    assert [m.text for m in snapshot.messages][::2] == ["hi", "next"]
    assert len(runner.turns) == 2


@pytest.mark.requirement("CORE-RPC-15")
async def test_of_twenty_different_starts_of_one_session_one_counts(tmp_path: Path) -> None:
    runner = FunctionRunner()
    async with running_session(tmp_path, runner) as session:
        starts = [
            session.client.start_session(session.session_id, f"start {n}", message_id=f"id {n}")
            for n in range(20)
        ]
        results = await asyncio.gather(*starts, return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert len(refused) == 19
        assert all(isinstance(error, SessionAlreadyExistsError) for error in refused)
        (started,) = (n for n, result in enumerate(results) if result not in refused)
        snapshot = await session.turn_ended(1)
        await session.send("next")
        snapshot = await session.turn_ended(2)
    assert [m.text for m in snapshot.messages][::2] == [f"start {started}", "next"]
    assert len(runner.turns) == 2


@pytest.mark.requirement("CORE-RPC-16")
@pytest.mark.parametrize("bad_id", ["", "  ", "a/b", "a:b", "a$b", "\ud800"])
async def test_an_unusable_session_id_is_refused_before_anything_is_sent(
    tmp_path: Path, bad_id: str
) -> None:
    async with running_session(tmp_path, FunctionRunner()) as session:
        for call in (
            session.client.start_session(bad_id, "hi"),
            session.client.send_user_message(bad_id, "hi"),
            session.client.resolve_interrupt(bad_id, "x", approved=True),
            session.client.get_agent_snapshot(bad_id),
            session.client.list_agent_messages(bad_id),
            session.client.read_agent_event(bad_id),
            session.client.stop_session(bad_id),
        ):
            with pytest.raises(InvalidSessionIdError) as raised:
                await call
            for character in "/:$":
                if character in bad_id:
                    assert raised.value.character == character
        assert (await session.client.list_sessions(include_closed=True)).sessions == ()


@pytest.mark.requirement("CORE-RPC-17")
async def test_bad_messages_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with running_session(tmp_path, FunctionRunner()) as session:
        await session.start()
        client, session_id = session.client, session.session_id
        for bad_id in ("", "  ", "x" * 300, "\ud800"):
            with pytest.raises(InvalidMessageIdError):
                await client.send_user_message(session_id, "hi", message_id=bad_id)
        with pytest.raises(MessageTooLargeError):
            await client.send_user_message(session_id, "x" * 600_000)
        snapshot = await session.until("the state", lambda s: s if s.state else None)
        assert snapshot.queued_message_count == 0
        assert snapshot.messages == ()


@pytest.mark.requirement("CORE-RPC-08")
async def test_missing_and_closed_sessions_are_told_apart(tmp_path: Path) -> None:
    async with running_session(tmp_path, FunctionRunner()) as session:
        client = session.client
        with pytest.raises(SessionNotFoundError):
            await client.send_user_message("nobody", "hi")
        with pytest.raises(SessionNotFoundError):
            await client.get_agent_snapshot("nobody")
        with pytest.raises(SessionNotFoundError):
            await client.list_agent_messages("nobody")
        with pytest.raises(SessionNotFoundError):
            await client.stop_session("nobody")
        await session.start("hi")
        await session.turn_ended(1)
        await client.stop_session(session.session_id, "enough")
        with pytest.raises(SessionClosedError) as raised:
            await client.send_user_message(session.session_id, "hi")
        assert raised.value.status == "canceled"
        with pytest.raises(SessionClosedError):
            await client.resolve_interrupt(session.session_id, "turn-1~c1", approved=True)
        with pytest.raises(SessionClosedError):
            await client.stop_session(session.session_id)
        with pytest.raises(SessionAlreadyExistsError):
            await client.start_session(session.session_id, "hi")
        assert len((await session.snapshot()).messages) == 2
        assert len((await client.list_agent_messages(session.session_id)).messages) == 2


@pytest.mark.requirement("CORE-STORE-12", "CORE-RPC-20")
async def test_sessions_are_listed_by_what_they_do(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.messages[-1].text == "wait":
            await gate.wait()
        return echo(turn)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        client = session.client
        await client.start_session("busy", "wait")
        await client.start_session("idle", "hi")
        await client.start_session("ended")
        await client.stop_session("ended")

        async def ids(**arguments: object) -> list[str]:
            page = await client.list_sessions(**arguments)  # pyright: ignore[reportArgumentType] - test
            return sorted(entry.session_id for entry in page.sessions)

        session.session_id = "idle"
        await session.turn_ended(1)
        assert await ids() == ["busy", "idle"]
        assert await ids(status=AgentStatus.RUNNING_MODEL) == ["busy"]
        assert await ids(status=AgentStatus.WAITING_FOR_USER_MESSAGE) == ["idle"]
        assert await ids(include_closed=True) == ["busy", "ended", "idle"]
        first = await client.list_sessions(page_size=1)
        assert len(first.sessions) == 1
        second = await client.list_sessions(page_size=1, page_token=first.next_page_token)
        assert {first.sessions[0].session_id, second.sessions[0].session_id} == {"busy", "idle"}
        gate.set()


@pytest.mark.requirement("CORE-RPC-06", "CORE-RPC-09")
async def test_pages_hold_every_message_once_and_end_by_count(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        items = [FrameworkMessage(MessageRole.ASSISTANT, "{}", f"item {n}") for n in range(548)]
        return answer("end", *items)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
        assert [m.sequence for m in snapshot.messages] == list(range(351, 551))
        seen: list[int] = []
        after, has_more, pages = 0, True, 0
        while has_more:
            page = await session.client.list_agent_messages(session.session_id, after, 9999)
            seen += [m.sequence for m in page.messages]
            after, has_more, pages = page.next_after_sequence, page.has_more, pages + 1
        assert seen == list(range(1, 551))
        assert pages == 3
        page = await session.client.list_agent_messages(session.session_id, 5, 0)
        assert [m.sequence for m in page.messages] == [6]
        page = await session.client.list_agent_messages(session.session_id, 550)
        assert (page.messages, page.has_more, page.next_after_sequence) == ((), False, 550)
        page = await session.client.list_agent_messages(session.session_id, -3, 2)
        assert [m.sequence for m in page.messages] == [1, 2]


@pytest.mark.requirement("CORE-RPC-10")
async def test_pages_and_snapshots_end_by_bytes(tmp_path: Path) -> None:
    noise = random.Random(3)

    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        text = "".join(noise.choices(string.printable, k=700_000))
        return answer("end", FrameworkMessage(MessageRole.ASSISTANT, "{}", text))

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start()
        for turn in range(1, 6):
            await session.send(f"turn {turn}")
            await session.turn_ended(turn)
        snapshot = await session.snapshot()
        assert [m.sequence for m in snapshot.messages][-1] == 15
        assert sum(len(m.text) for m in snapshot.messages) < 2_000_000
        seen: list[int] = []
        after, has_more, pages = 0, True, 0
        while has_more:
            page = await session.client.list_agent_messages(session.session_id, after)
            assert sum(len(m.text) for m in page.messages) < 2_000_000
            seen += [m.sequence for m in page.messages]
            after, has_more, pages = page.next_after_sequence, page.has_more, pages + 1
        assert seen == list(range(1, 16))
        assert pages == 3


@pytest.mark.requirement("CORE-RPC-12")
async def test_a_snapshot_needs_two_calls_at_most_and_one_when_nothing_changed(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return answer(outcomes(turn)[0])
        return ask(tool_call("c1", "refund", ToolEffect.UNCLASSIFIED))

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("go")
        await session.interrupts()
        calls: list[object] = []
        invoke = session.app.client.invoke_rpc

        async def counting(*arguments: object, **options: object) -> object:
            calls.append(arguments[0])
            return await invoke(*arguments, **options)  # pyright: ignore[reportCallIssue, reportArgumentType] - passed on

        session.app.client.invoke_rpc = counting  # pyright: ignore[reportAttributeAccessIssue] - counted
        snapshot = await session.snapshot()
        assert len(calls) == 1
        assert [c.tool_call_id for c in snapshot.tool_calls] == ["c1"]
        other = session.app.sessions(session.flow)
        assert await other.get_agent_snapshot(session.session_id) == snapshot
        assert len(calls) == 3


@pytest.mark.requirement("CORE-RPC-19")
async def test_a_plain_call_of_an_rpc_works_without_the_client(tmp_path: Path) -> None:
    async with running_session(tmp_path, FunctionRunner()) as session:
        await session.start()
        client, flow, session_id = session.app.client, session.flow, session.session_id
        assert await client.invoke_rpc(flow.send_user_message, session_id, AgentUserMessage("hi"))
        assert not await client.invoke_rpc(
            flow.send_user_message, session_id, AgentUserMessage("   ")
        )
        await session.turn_ended(1)
        snapshot = await client.invoke_rpc(flow.get_agent_snapshot, session_id)
        assert snapshot.state is not None
        assert snapshot.state.message_count == 2
        page = await client.invoke_rpc(
            flow.list_agent_messages, session_id, ListAgentMessagesRequest(0, 10)
        )
        assert page.has_more


@pytest.mark.requirement("CORE-STORE-14")
def test_a_registry_without_the_explicit_codecs_accepts_the_flow() -> None:
    flow = AgentSessionFlow(FunctionRunner(), flow_type="Plain")
    assert Registry([flow], allow_async_handlers=True).flows == (flow,)
