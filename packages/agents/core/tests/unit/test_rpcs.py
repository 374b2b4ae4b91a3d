"""What each RPC does with what is stored, and how the client repeats a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from dex import ErrorSubStatus, RpcLockConflictError
from step_values import INTERRUPT, MESSAGE, NOW, worker

from dex_agents import (
    AGENT_INDEX,
    AGENT_MESSAGES,
    AGENT_STATE,
    PENDING_INTERRUPTS,
    AgentState,
    AgentStatus,
    AgentUsage,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
    message_sequence_key,
)
from dex_agents import _repeating as repeating
from dex_agents._internal_values import AgentSessionIndex


@pytest.mark.requirement("CORE-RPC-01")
async def test_a_blank_message_is_answered_false_and_not_queued() -> None:
    blank = await worker().rpc("send_user_message", AgentUserMessage(" \t"), attributes={})
    assert (blank.reply, blank.published) == (False, [])
    sent = await worker().rpc("send_user_message", AgentUserMessage("hi"), attributes={})
    assert (sent.reply, sent.published) == (True, ["QueuedUserMessages"])


@pytest.mark.requirement("CORE-STORE-12", "CORE-RPC-03")
async def test_an_answer_removes_the_question_and_is_passed_on_in_one_commit() -> None:
    attributes = {PENDING_INTERRUPTS: [INTERRUPT, replace(INTERRUPT, interrupt_id="turn-1~c2")]}
    run = await worker().rpc(
        "resolve_interrupt", ResolveInterruptRequest("turn-1~c1", True), attributes=attributes
    )
    assert run.reply is True
    assert run.published == ["InterruptResolutions/turn-1~c1"]
    assert [i.interrupt_id for i in run.writes["PendingInterrupts"]] == ["turn-1~c2"]
    assert run.writes["PendingApprovalCount"] == 1


@pytest.mark.requirement("CORE-RPC-04")
@pytest.mark.parametrize("pending", [[], [replace(INTERRUPT, deadline=NOW)]])
async def test_an_answer_to_nothing_or_too_late_is_false_and_changes_nothing(pending: Any) -> None:
    run = await worker().rpc(
        "resolve_interrupt",
        ResolveInterruptRequest("turn-1~c1", True),
        attributes={PENDING_INTERRUPTS: pending},
    )
    assert (run.reply, run.published, run.writes) == (False, [], {})


@pytest.mark.requirement("CORE-RPC-07")
async def test_a_snapshot_has_no_state_before_the_first_step_has_committed() -> None:
    snapshot = (await worker().rpc("get_agent_snapshot", attributes={})).reply
    assert snapshot.state is None
    assert snapshot.messages == ()
    assert snapshot.usage == AgentUsage()


@pytest.mark.requirement("CORE-RPC-06", "CORE-RPC-09")
async def test_a_page_is_oldest_first_and_its_limit_stays_in_range() -> None:
    messages = [replace(MESSAGE, sequence=n) for n in range(1, 251)]
    entries = [(AGENT_MESSAGES, message_sequence_key(m.sequence), m) for m in messages]
    attributes = {
        AGENT_STATE: AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 1, 250),
        AGENT_INDEX: AgentSessionIndex((100,) * 250),
    }
    for limit, count in ((0, 1), (-5, 1), (7, 7), (999, 200)):
        page = (
            await worker().rpc(
                "list_agent_messages",
                ListAgentMessagesRequest(0, limit),
                attributes=attributes,
                entries=entries,
            )
        ).reply
        assert [m.sequence for m in page.messages] == list(range(1, count + 1))
        assert (page.next_after_sequence, page.has_more) == (count, True)
    snapshot = (
        await worker().rpc("get_agent_snapshot", attributes=attributes, entries=entries)
    ).reply
    assert [m.sequence for m in snapshot.messages] == list(range(51, 251))


@pytest.mark.requirement("CORE-RPC-05")
async def test_a_call_whose_lock_is_held_is_repeated_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert repeating.LOCK_RETRY_SECONDS == 5
    conflict = RpcLockConflictError(
        grpc.StatusCode.ABORTED, next(iter(ErrorSubStatus)), "held", "invoke_rpc", "session-1"
    )
    tries: list[int] = []

    async def call() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise conflict
        return "answered"

    assert await repeating.while_locked(call) == "answered"
    monkeypatch.setattr(repeating, "LOCK_RETRY_SECONDS", 0)
    tries.clear()
    with pytest.raises(RpcLockConflictError):
        await repeating.while_locked(call)
