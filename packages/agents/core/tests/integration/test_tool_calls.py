"""Tool calls on a real engine: results, failures, limits and what the record says."""

from __future__ import annotations

import asyncio
import random
import string
from pathlib import Path

import pytest
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
    AgentSessionOptions,
    AgentToolCall,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    StepLimits,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
)
from dex_agents.testing import EXECUTE_COMPLETED_EVENT, read_step_history

OPTIONS = AgentSessionOptions(
    model_limits=StepLimits(max_attempts=2), tool_limits=StepLimits(max_attempts=2)
)


def noise(length: int, seed: int = 1) -> str:
    """Return text that does not compress."""
    return "".join(random.Random(seed).choices(string.printable, k=length))


def once(effect: ToolEffect, requires_approval: bool | None = False) -> FunctionRunner:
    """Make a runner whose turn makes one call and then answers with what the model reads."""

    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return answer(outcomes(turn)[0])
        return ask(tool_call("c1", "act", effect, '{"x": 1}', requires_approval))

    return FunctionRunner(model)


def final_record(runner: FunctionRunner) -> AgentToolCall:
    """Return what the resumed model call saw."""
    return runner.turns[-1].tool_calls["c1"]


async def run_turn(session: RunningSession) -> list[tuple[str, int]]:
    """Run one turn and return its executed Steps with their final attempts."""
    await session.start("go")
    await session.turn_ended(1)
    history = await read_step_history(session.app.server_address, session.session_id)
    return [
        (entry.step_type, entry.final_attempt)
        for entry in history
        if entry.event_type == EXECUTE_COMPLETED_EVENT
    ]


@pytest.mark.requirement("CORE-TOOL-03")
async def test_a_tool_execution_error_is_final_and_read_by_the_model(tmp_path: Path) -> None:
    runner = once(ToolEffect.IDEMPOTENT_WRITE)

    def tool(call: DeferredToolExecution) -> str:
        raise ToolExecutionError("no such order")

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await run_turn(session)
    assert len(runner.executions) == 1
    record = final_record(runner)
    assert (record.status, record.error) == (ToolCallStatus.FAILED, "no such order")


@pytest.mark.requirement("CORE-TOOL-18")
@pytest.mark.parametrize("length", [10, 100_000], ids=["in the record", "apart from it"])
async def test_a_failure_brings_its_payload_to_the_next_model_call(
    tmp_path: Path, length: int
) -> None:
    payload = noise(length)
    runner = once(ToolEffect.NON_IDEMPOTENT_WRITE)

    def tool(call: DeferredToolExecution) -> str:
        raise ToolExecutionError("no such order", framework_payload=payload)

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await run_turn(session)
    record = final_record(runner)
    assert (record.status, record.error) == (ToolCallStatus.FAILED, "no such order")
    assert record.framework_payload == payload


@pytest.mark.requirement("CORE-TOOL-18")
async def test_a_payload_that_is_left_out_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = once(ToolEffect.NON_IDEMPOTENT_WRITE)

    def tool(call: DeferredToolExecution) -> str:
        raise ToolExecutionError("no such order", framework_payload=noise(900_000))

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await run_turn(session)
    record = final_record(runner)
    assert (record.status, record.error) == (ToolCallStatus.FAILED, "no such order")
    assert "'act'" in caplog.text
    assert str(512 * 1024) in caplog.text


@pytest.mark.requirement("CORE-EFFECT-01")
async def test_a_read_is_retried_and_then_failed(tmp_path: Path) -> None:
    runner = once(ToolEffect.READ)

    def tool(call: DeferredToolExecution) -> str:
        raise OSError(f"attempt {call.attempt}")

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        steps = await run_turn(session)
    assert ("RecordToolFailure", 1) in steps
    assert [e.attempt for e in runner.executions] == [1, 2]
    record = final_record(runner)
    assert (record.status, record.error) == (ToolCallStatus.FAILED, "OSError: attempt 2")


@pytest.mark.requirement("CORE-EFFECT-02")
async def test_an_idempotent_write_is_retried_with_the_same_key_and_then_unknown(
    tmp_path: Path,
) -> None:
    runner = once(ToolEffect.IDEMPOTENT_WRITE)

    def tool(call: DeferredToolExecution) -> str:
        raise OSError("gone")

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        steps = await run_turn(session)
    assert ("RecordToolFailure", 1) in steps
    assert [e.idempotency_key for e in runner.executions] == ["session-1/turn-1/c1"] * 2
    assert final_record(runner).status is ToolCallStatus.OUTCOME_UNKNOWN


@pytest.mark.requirement("CORE-EFFECT-03")
async def test_a_write_that_may_run_once_runs_once_and_is_unknown_after_an_error(
    tmp_path: Path,
) -> None:
    for effect in (ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.UNCLASSIFIED):
        runner = once(effect)

        def tool(call: DeferredToolExecution) -> str:
            raise OSError("gone")

        runner.tool = tool
        async with running_session(tmp_path / effect.value, runner, OPTIONS) as session:
            steps = await run_turn(session)
        assert ("RecordToolOutcomeUnknown", 1) in steps
        assert len(runner.executions) == 1
        record = final_record(runner)
        assert record.status is ToolCallStatus.OUTCOME_UNKNOWN
        assert record.error == "OSError: gone"


@pytest.mark.requirement("CORE-EFFECT-09")
async def test_a_repeatable_call_that_recovers_succeeds(tmp_path: Path) -> None:
    runner = once(ToolEffect.READ)

    def tool(call: DeferredToolExecution) -> str:
        if call.attempt == 1:
            raise OSError("not yet")
        return "found"

    runner.tool = tool
    async with running_session(tmp_path, runner, OPTIONS) as session:
        steps = await run_turn(session)
    assert ("CallTool", 2) in steps
    assert final_record(runner).output == "found"


@pytest.mark.requirement("CORE-TOOL-08")
async def test_a_long_output_reaches_the_model_whole_and_the_snapshot_cut(tmp_path: Path) -> None:
    text = noise(200_000)
    runner = once(ToolEffect.READ)
    runner.tool = lambda call: ToolExecutionResult(text, framework_payload='{"structured": true}')
    gate = asyncio.Event()
    model = runner.model

    async def waiting(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            await gate.wait()
        outcome = model(turn)
        assert not asyncio.iscoroutine(outcome)
        return outcome  # pyright: ignore[reportReturnType] - the wrapped model is synchronous

    runner.model = waiting
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await session.start("go")
        calls = await session.until(
            "the finished call",
            lambda s: s.tool_calls if s.tool_calls and s.tool_calls[0].status.is_final else None,
        )
        assert calls[0].is_output_cut
        assert calls[0].output == text[:2000]
        gate.set()
        await session.turn_ended(1)
    record = final_record(runner)
    assert record.output == text
    assert record.framework_payload == '{"structured": true}'
    assert not record.is_output_cut


@pytest.mark.requirement("CORE-TOOL-09")
async def test_an_output_above_the_limit_fails_a_read_and_leaves_a_write_unknown(
    tmp_path: Path,
) -> None:
    for effect, status in (
        (ToolEffect.READ, ToolCallStatus.FAILED),
        (ToolEffect.IDEMPOTENT_WRITE, ToolCallStatus.OUTCOME_UNKNOWN),
        (ToolEffect.NON_IDEMPOTENT_WRITE, ToolCallStatus.OUTCOME_UNKNOWN),
    ):
        runner = once(effect)
        runner.tool = lambda call: noise(900_000)
        async with running_session(tmp_path / effect.value, runner, OPTIONS) as session:
            await run_turn(session)
        assert len(runner.executions) == 1
        record = final_record(runner)
        assert record.status is status
        assert record.error is not None
        assert "'act'" in record.error
        assert str(512 * 1024) in record.error


@pytest.mark.requirement("CORE-STORE-15")
async def test_an_output_with_half_a_character_is_kept(tmp_path: Path) -> None:
    runner = once(ToolEffect.READ)
    runner.tool = lambda call: "half \ud83d"
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await run_turn(session)
        snapshot = await session.snapshot()
    assert final_record(runner).output == "half \ud83d"
    assert snapshot.messages[-1].text == "half \ud83d"


@pytest.mark.requirement("CORE-TOOL-10")
async def test_a_result_of_the_wrong_kind_is_final_and_not_retried(tmp_path: Path) -> None:
    runner = once(ToolEffect.READ)
    runner.tool = lambda call: 42  # pyright: ignore[reportAttributeAccessIssue] - on purpose
    async with running_session(tmp_path, runner, OPTIONS) as session:
        await run_turn(session)
    assert len(runner.executions) == 1
    record = final_record(runner)
    assert record.status is ToolCallStatus.FAILED
    assert "int" in (record.error or "")


async def test_a_big_batch_of_calls_and_large_outputs_still_fit(tmp_path: Path) -> None:
    """60 outputs of 100 kB are more than one task may carry, so the model Step loads in parts."""
    outputs = {f"c{n}": noise(100_000, seed=n) for n in range(60)}

    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if not turn.is_resuming:
            return ask(*(tool_call(call_id) for call_id in outputs))
        whole = all(turn.tool_calls[c].output == text for c, text in outputs.items())
        return answer(f"whole: {whole}")

    runner = FunctionRunner(model, lambda call: outputs[call.tool_call.tool_call_id])
    async with running_session(tmp_path, runner, max_concurrent_tasks=80) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
        assert snapshot.messages[-1].text == "whole: True"
        history = await read_step_history(session.app.server_address, session.session_id)
    model_steps = [e for e in history if e.step_type == "RunModel"]
    assert len(model_steps) > 2
    assert len(runner.turns) == 2
    assert all(entry.final_attempt == 1 for entry in model_steps)
