"""Single Steps through the SDK's dispatcher: what they send, and what a cold worker does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_worker import FakeWorker
from session_harness import FunctionRunner, answer, ask, tool_call

from dex_agents import (
    AGENT_INDEX,
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AgentMessage,
    AgentSessionFlow,
    AgentState,
    AgentStatus,
    AgentToolCall,
    DeferredToolExecution,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)
from dex_agents._internal_values import AgentSessionIndex, ModelStepBudget, ToolCallEntry
from dex_agents._json_form import encoded_bytes
from dex_agents._session.history import append_sizes
from dex_agents.persistence import MODEL_STEP_BUDGET
from dex_agents.session_flow import StepFailedError

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CALL = AgentToolCall("c1", "turn-1", "pay", "{}", ToolEffect.NON_IDEMPOTENT_WRITE, False, 0)


def messages(count: int) -> list[AgentMessage]:
    return [
        AgentMessage(n, "turn-1", MessageRole.USER, f"message {n} " + "x" * 2000, "{}", NOW)
        for n in range(1, count + 1)
    ]


def stored(count: int) -> tuple[dict[Any, Any], list[tuple[Any, str, Any]], list[Any]]:
    """Return attributes of a session with so many messages, its messages, and its size blocks."""
    sizes = [encoded_bytes(message) for message in messages(count)]
    appended = append_sizes(AgentSessionIndex(), 0, sizes)
    attributes = {
        AGENT_STATE: AgentState(AgentStatus.RUNNING_MODEL, 1, count, "turn-2"),
        AGENT_INDEX: appended.index,
    }
    entries = [(AGENT_MESSAGES, message_sequence_key(m.sequence), m) for m in messages(count)]
    blocks = [
        (AGENT_MESSAGE_SIZES, message_sequence_key(first), block)
        for first, block in appended.sealed
    ]
    return attributes, entries, blocks


# --- tools --------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-TOOL-04", "CORE-TOOL-05")
async def test_a_tool_step_gives_signs_of_life_before_the_tool_has_any_effect() -> None:
    order: list[str] = []

    def tool(call: DeferredToolExecution) -> str:
        order.append("tool")
        return "paid"

    worker = FakeWorker(AgentSessionFlow(FunctionRunner(tool=tool), flow_type="T"))
    state = AgentState(AgentStatus.RUNNING_TOOLS, 0, 1, "turn-1")
    run = await worker.run(
        "CallSingleAttemptTool",
        "c1",
        attributes={AGENT_STATE: state},
        entries=[(AGENT_TOOL_CALLS, "c1", CALL)],
        on_output=order.append,
    )
    assert order.index("stream_write") < order.index("heartbeat") < order.index("tool")
    assert run.outputs[-1] == "result"
    assert run.published == ["ToolCallResults"]
    assert run.writes["AgentToolCalls/c1"].status is ToolCallStatus.SUCCEEDED
    assert list(run.writes) == ["AgentToolCalls/c1"]
    assert run.next_steps == []


@pytest.mark.requirement("CORE-TOOL-06")
@pytest.mark.parametrize(
    "step", ["CallTool", "CallSingleAttemptTool", "RecordToolFailure", "RecordToolOutcomeUnknown"]
)
async def test_a_step_whose_record_is_final_ends_without_running_or_publishing(step: str) -> None:
    runner = FunctionRunner()
    worker = FakeWorker(AgentSessionFlow(runner, flow_type="T"))
    run = await worker.run(
        step,
        "c1",
        attributes={AGENT_STATE: AgentState(AgentStatus.RUNNING_TOOLS, 0, 1, "turn-1")},
        entries=[(AGENT_TOOL_CALLS, "c1", replace(CALL, status=ToolCallStatus.FAILED))],
    )
    assert (run.published, run.writes, run.next_steps) == ([], {}, [])
    assert runner.executions == []


@pytest.mark.requirement("CORE-TOOL-07")
async def test_a_call_that_was_not_approved_is_never_run() -> None:
    runner = FunctionRunner()
    worker = FakeWorker(AgentSessionFlow(runner, flow_type="T"))
    waiting = replace(CALL, status=ToolCallStatus.AWAITING_APPROVAL)
    with pytest.raises(StepFailedError, match="not approved"):
        await worker.run(
            "CallSingleAttemptTool",
            "c1",
            attributes={AGENT_STATE: AgentState(AgentStatus.RUNNING_TOOLS, 0, 1, "turn-1")},
            entries=[(AGENT_TOOL_CALLS, "c1", waiting)],
        )
    assert runner.executions == []


# --- cold workers -------------------------------------------------------------------------------


def cold_worker(runner: FunctionRunner) -> FakeWorker:
    return FakeWorker(AgentSessionFlow(runner, flow_type="T"))


@pytest.mark.requirement("CORE-COST-02")
async def test_a_cold_attempt_makes_no_model_call_and_keeps_the_attempts_counted() -> None:
    """Attempt 2 landed on a worker that lacks old messages; attempt 1 may have called the model."""
    attributes, entries, _ = stored(150)
    runner = FunctionRunner()
    worker = cold_worker(runner)
    run = await worker.run(
        "RunModel", attributes=attributes, entries=entries[-20:], attempt=2, first_attempt_ago=100
    )
    assert runner.turns == []
    (movement,) = run.next_steps
    assert movement.step_type == "RunModel"
    policy = movement.step_options.execute_retry_policy
    assert policy.maximum_attempts == 2
    assert 1690 <= policy.total_duration_seconds <= 1700
    assert len(movement.step_options.execute_load_attribute_map_instances) == 150
    budget = run.writes["ModelStepBudget"]
    assert (budget.attempts_used, budget.hops) == (1, 1)

    run = await worker.run(
        "RunModel", attributes={**attributes, MODEL_STEP_BUDGET: budget}, entries=entries
    )
    (turn,) = runner.turns
    assert turn.attempt == 2
    assert len(turn.messages) == 150
    assert run.writes["ModelStepBudget"] is None
    assert run.next_steps[0].step_type == "AwaitUserMessage"


@pytest.mark.requirement("CORE-COST-01")
async def test_a_warm_worker_needs_only_what_it_lacks() -> None:
    attributes, entries, _ = stored(150)
    runner = FunctionRunner()
    worker = cold_worker(runner)
    await worker.run("RunModel", attributes=attributes, entries=entries)
    more, all_entries, _ = stored(152)
    await worker.run("RunModel", attributes=more, entries=all_entries[-1:])
    assert len(runner.turns) == 1
    await worker.run("RunModel", attributes=more, entries=all_entries[-2:])
    assert [len(turn.messages) for turn in runner.turns] == [150, 152]


@pytest.mark.requirement("CORE-COST-03")
async def test_a_long_history_is_loaded_by_sizes_first_and_then_in_ranges() -> None:
    attributes, entries, blocks = stored(3000)
    runner = FunctionRunner()
    worker = cold_worker(runner)
    by_key = {(m, key): (m, key, value) for m, key, value in (*entries, *blocks)}
    loads, hops = entries[-100:], 0
    while not runner.turns:
        run = await worker.run("RunModel", attributes=attributes, entries=loads)
        if runner.turns:
            break
        hops += 1
        (movement,) = run.next_steps
        attributes[MODEL_STEP_BUDGET] = run.writes["ModelStepBudget"]
        names = list(movement.step_options.execute_load_attribute_map_instances)
        loads = [
            by_key[m, name.split("/")[1]]
            for name in names
            for m in (AGENT_MESSAGES, AGENT_MESSAGE_SIZES)
            if name.startswith(f"{m.name}/")
        ]
        carried = sum(encoded_bytes(value) for _, _, value in loads)
        assert carried <= 3_000_000
        assert hops < 8
    assert len(runner.turns[0].messages) == 3000
    assert hops >= 3
    budget = attributes[MODEL_STEP_BUDGET]
    assert (budget.attempts_used, budget.hops) == (0, hops)


@pytest.mark.requirement("CORE-COST-06")
async def test_a_history_that_never_arrives_fails_the_turn_with_words() -> None:
    attributes, entries, _ = stored(150)
    attributes[MODEL_STEP_BUDGET] = ModelStepBudget(0, datetime.now(UTC), 3, 3)
    runner = FunctionRunner()
    run = await cold_worker(runner).run("RunModel", attributes=attributes, entries=entries[-1:])
    assert runner.turns == []
    assert run.next_steps[0].step_type == "RecordTurnFailure"
    failure = run.writes["PendingTurnFailure"]
    assert failure.error_type == "HistoryNotLoaded"
    assert "3 tasks" in failure.message


@pytest.mark.requirement("CORE-COST-05")
async def test_loading_does_not_extend_the_time_for_the_model_call() -> None:
    attributes, entries, _ = stored(150)
    began = datetime.now(UTC) - timedelta(minutes=31)
    attributes[MODEL_STEP_BUDGET] = ModelStepBudget(0, began, 1, 9)
    runner = FunctionRunner()
    run = await cold_worker(runner).run("RunModel", attributes=attributes, entries=entries[-1:])
    assert run.next_steps[0].step_type == "RecordTurnFailure"


@pytest.mark.requirement("CORE-STORE-11")
async def test_a_stored_message_that_is_gone_fails_the_turn_and_is_not_skipped() -> None:
    attributes, entries, _ = stored(5)
    entries[2] = (entries[2][0], entries[2][1], None)
    runner = FunctionRunner()
    run = await cold_worker(runner).run("RunModel", attributes=attributes, entries=entries)
    assert runner.turns == []
    assert run.writes["PendingTurnFailure"].message == "the stored message 3 is gone"


@pytest.mark.requirement("CORE-COST-16")
async def test_a_session_that_goes_on_from_an_earlier_point_is_read_afresh() -> None:
    attributes, entries, _ = stored(5)
    runner = FunctionRunner()
    worker = cold_worker(runner)
    await worker.run("RunModel", attributes=attributes, entries=entries)
    another = [
        (m, key, replace(value, text=f"another {value.sequence}")) for m, key, value in entries
    ]
    await worker.run("RunModel", attributes=attributes, entries=another)
    assert runner.turns[1].messages[0].text == "another 1"


@pytest.mark.requirement("CORE-COST-07")
async def test_only_values_that_arrived_are_kept_and_not_what_a_step_has_just_written() -> None:
    """What `RunModel` writes may never be committed, so the next task must bring it."""
    attributes, entries, _ = stored(1)
    runner = FunctionRunner(lambda turn: answer("new"))
    worker = cold_worker(runner)
    run = await worker.run("RunModel", attributes=attributes, entries=entries)
    written = run.writes["AgentMessages/000000000002"]
    assert written.text == "new"
    state = AgentState(AgentStatus.RUNNING_MODEL, 2, 2, "turn-3")
    again = {AGENT_STATE: state, AGENT_INDEX: run.writes["AgentSessionIndex"]}
    run = await worker.run("RunModel", attributes=again, entries=[])
    assert len(runner.turns) == 1
    assert run.next_steps[0].step_type == "RunModel"


# --- outcomes -----------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-TOOL-02", "CORE-APPROVAL-01", "CORE-STEP-05")
async def test_one_decision_moves_to_every_call_and_to_the_step_that_waits_for_them() -> None:
    attributes, entries, _ = stored(1)
    calls = [tool_call(f"c{n}") for n in range(58)]
    calls += [tool_call("asked", "pay", ToolEffect.UNCLASSIFIED), tool_call("c59")]
    runner = FunctionRunner(lambda turn: ask(*calls))
    run = await cold_worker(runner).run("RunModel", attributes=attributes, entries=entries)
    kinds = [movement.step_type for movement in run.next_steps]
    assert kinds == ["CallTool"] * 58 + ["AwaitToolApproval", "CallTool", "ResumeTurn"]
    assert run.next_steps[-1].step_input.int_value == 60
    assert run.writes["PendingApprovalCount"] == 1
    assert [i.tool_call_id for i in run.writes["PendingInterrupts"]] == ["asked"]
    assert run.writes["AgentStatus"] == "running_tools"
    assert run.writes["FrameworkRunState"] == "paused"
    assert run.writes["AgentToolCalls/asked"].status is ToolCallStatus.AWAITING_APPROVAL


@pytest.mark.requirement("CORE-STEP-13")
async def test_a_turn_that_ends_leaves_nothing_of_its_calls_behind() -> None:
    attributes, entries, _ = stored(1)
    final = replace(CALL, turn_id="turn-2", status=ToolCallStatus.SUCCEEDED, output="paid")
    attributes[AGENT_INDEX] = replace(
        attributes[AGENT_INDEX], tool_calls=(ToolCallEntry("c1", 300),)
    )
    runner = FunctionRunner(lambda turn: answer("done"))
    run = await cold_worker(runner).run(
        "RunModel", attributes=attributes, entries=[*entries, (AGENT_TOOL_CALLS, "c1", final)]
    )
    assert run.writes["AgentToolCalls/c1"] is None
    assert run.writes["AgentSessionIndex"].tool_calls == ()
    assert run.writes["AgentState"].turn_id is None


@pytest.mark.requirement("CORE-RUNNER-15")
@pytest.mark.parametrize("returned", [None, "text", 42])
async def test_an_outcome_that_is_none_of_the_three_fails_the_turn_at_once(
    returned: object,
) -> None:
    attributes, entries, _ = stored(1)
    runner = FunctionRunner(lambda turn: returned)  # pyright: ignore[reportArgumentType] - on purpose
    run = await cold_worker(runner).run("RunModel", attributes=attributes, entries=entries)
    assert run.next_steps[0].step_type == "RecordTurnFailure"
    assert run.writes["PendingTurnFailure"].error_type == "RunnerContractError"
    assert list(run.writes) == ["PendingTurnFailure"]
