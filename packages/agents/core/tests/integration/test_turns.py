"""Turns on a real engine: messages, tools in parallel, usage, events, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from session_harness import (
    ONE_CALL,
    FunctionRunner,
    answer,
    ask,
    echo,
    outcomes,
    running_session,
    running_sessions,
    tool_call,
    user_message,
)

from dex_agents import (
    AgentEventType,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentStatus,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ModelError,
    StepLimits,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    TurnContinues,
    TurnFailedError,
)
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    read_step_history,
    wait_for_agent_snapshot,
)

FAST_RETRIES = AgentSessionOptions(
    model_limits=StepLimits(max_attempts=2), tool_limits=StepLimits(max_attempts=2)
)


@pytest.mark.requirement("CORE-RUNNER-04", "CORE-STORE-03")
async def test_a_turn_stores_the_question_and_the_answer_in_order(tmp_path: Path) -> None:
    runner = FunctionRunner()
    async with running_session(tmp_path, runner) as session:
        await session.start("hello")
        await session.turn_ended(1)
        await session.send("again")
        snapshot = await session.turn_ended(2)
        assert [(m.sequence, m.turn_id, m.role, m.text) for m in snapshot.messages] == [
            (1, "turn-1", MessageRole.USER, "hello"),
            (2, "turn-1", MessageRole.ASSISTANT, "echo hello"),
            (3, "turn-2", MessageRole.USER, "again"),
            (4, "turn-2", MessageRole.ASSISTANT, "echo again"),
        ]
        assert snapshot.state is not None
        assert snapshot.state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
        assert (snapshot.state.turn_count, snapshot.state.message_count) == (2, 4)
        assert snapshot.usage == ONE_CALL + ONE_CALL
    assert [m.text for m in runner.turns[1].messages] == ["hello", "echo hello", "again"]


@pytest.mark.requirement("CORE-STEP-02")
async def test_a_blank_initial_message_starts_no_turn(tmp_path: Path) -> None:
    runner = FunctionRunner()
    async with running_session(tmp_path, runner) as session:
        await session.start("  \n")
        snapshot = await session.until("the first state", lambda s: s if s.state else None)
        assert snapshot.state is not None
        assert snapshot.state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
        assert not await session.client.send_user_message(session.session_id, " \t ")
        await session.send("now")
        assert len((await session.turn_ended(1)).messages) == 2


@pytest.mark.requirement("CORE-STEP-03", "CORE-RPC-06")
async def test_messages_queue_while_a_turn_runs_and_get_a_turn_each(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        await gate.wait()
        return echo(turn)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("one")
        await session.send("two")
        await session.send("three")
        queued = await session.until(
            "two queued messages", lambda s: s if s.queued_message_count == 2 else None
        )
        assert queued.state is not None
        assert queued.state.turn_id == "turn-1"
        gate.set()
        snapshot = await session.turn_ended(3)
        assert [m.text for m in snapshot.messages][::2] == ["one", "two", "three"]


@pytest.mark.requirement("CORE-RUNNER-17", "CORE-TOOL-02")
async def test_tools_of_one_response_run_at_the_same_time_and_reach_the_model_in_order(
    tmp_path: Path,
) -> None:
    started: set[str] = set()
    all_started = asyncio.Event()

    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return answer(",".join(outcomes(turn)))
        return ask(*(tool_call(f"c{n}", f"tool{n}") for n in range(5)))

    async def tool(call: DeferredToolExecution) -> str:
        started.add(call.tool_call.tool_call_id)
        if len(started) == 5:
            all_started.set()
        await all_started.wait()
        return call.tool_call.tool_name

    runner = FunctionRunner(model, tool)
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
        assert snapshot.messages[-1].text == "tool0,tool1,tool2,tool3,tool4"
        assert snapshot.tool_calls == ()
        history = await read_step_history(session.app.server_address, session.session_id)
    executed = [e.step_type for e in history if e.event_type == EXECUTE_COMPLETED_EVENT]
    assert sorted(executed) == sorted(
        ["StartAgentSession", "RunModel", *["CallTool"] * 5, "ResumeTurn", "RunModel"]
    )
    resumed = runner.turns[1]
    assert resumed.framework_run_state == "paused"
    assert all(r.status is ToolCallStatus.SUCCEEDED for r in resumed.tool_calls.values())
    assert {e.idempotency_key for e in runner.executions} == {
        f"session-1/turn-1/c{n}" for n in range(5)
    }


@pytest.mark.requirement("CORE-RUNNER-06", "CORE-RUNNER-14", "CORE-TOOL-12")
async def test_several_rounds_keep_the_records_of_the_turn_and_count_usage_once(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        rounds = len(turn.tool_calls)
        if rounds < 3:
            return ask(tool_call(f"c{rounds}"), run_state=f"round {rounds}")
        return answer(",".join(outcomes(turn)))

    def tool(call: DeferredToolExecution) -> ToolExecutionResult:
        nested = AgentUsage(model_calls=2, total_tokens=7)
        return ToolExecutionResult(call.tool_call.tool_call_id, usage=nested)

    runner = FunctionRunner(model, tool)
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert snapshot.messages[-1].text == "c0,c1,c2"
    assert [sorted(t.tool_calls) for t in runner.turns] == [
        [],
        ["c0"],
        ["c0", "c1"],
        ["c0", "c1", "c2"],
    ]
    assert snapshot.usage.model_calls == 4 + 3 * 2
    assert snapshot.usage.total_tokens == 4 * 15 + 3 * 7


@pytest.mark.requirement("CORE-STEP-06")
async def test_a_turn_that_continues_goes_straight_to_another_model_call(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.framework_run_state == "handed off":
            return answer("from the specialist")
        return TurnContinues("handed off", ONE_CALL)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
        assert snapshot.messages[-1].text == "from the specialist"
        assert snapshot.usage.model_calls == 2
        history = await read_step_history(session.app.server_address, session.session_id)
    assert [e.step_type for e in history if e.step_type == "RunModel"] == ["RunModel"] * 2


@pytest.mark.requirement("CORE-RUNNER-13")
async def test_call_ids_may_repeat_in_a_later_turn(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        return answer(outcomes(turn)[0]) if turn.is_resuming else ask(tool_call("c1"))

    runner = FunctionRunner(model, lambda call: call.idempotency_key)
    async with running_session(tmp_path, runner) as session:
        await session.start("one")
        await session.turn_ended(1)
        await session.send("two")
        snapshot = await session.turn_ended(2)
    assert [m.text for m in snapshot.messages][1::2] == [
        "session-1/turn-1/c1",
        "session-1/turn-2/c1",
    ]


@pytest.mark.requirement("CORE-EVENT-02", "CORE-EVENT-04")
async def test_events_tell_a_turn_in_order_and_its_end_only_once_it_is_stored(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        turn.events.write_text_delta("Hel")
        turn.events.write_text_delta("lo")
        if turn.is_resuming:
            return answer("done")
        turn.events.write_reasoning_delta("hm")
        return ask(tool_call("c1"))

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("go")
        events = await session.events_until(AgentEventType.TURN_COMPLETED, "turn-1")
        snapshot = await session.snapshot()
        assert snapshot.state is not None
        assert snapshot.state.message_count == 2
    assert [e.type.value for e in events] == [
        "turn_started",
        "text_delta",
        "reasoning_delta",
        "tool_call_deferred",
        "usage_recorded",
        "tool_call_started",
        "tool_call_finished",
        "text_delta",
        "usage_recorded",
        "turn_completed",
    ]
    by_type = {e.type.value: e for e in events}
    assert by_type["turn_started"].payload == {"sequence": 1}
    assert by_type["text_delta"].payload == {"text": "Hello"}
    assert by_type["tool_call_deferred"].payload == {
        "tool_call_id": "c1",
        "tool_name": "look",
        "effect": "read",
        "requires_approval": False,
    }
    assert by_type["tool_call_finished"].payload == {
        "tool_call_id": "c1",
        "tool_name": "look",
        "status": "succeeded",
    }
    assert by_type["turn_completed"].payload == {"message_count": 2}
    assert all(e.turn_id == "turn-1" and e.attempt == 1 for e in events)
    assert len({e.step_execution_id for e in events if e.type.value == "text_delta"}) == 2


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-STEP-16", "CORE-FAIL-01")
async def test_a_final_failure_costs_one_model_call_and_names_its_type(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.turn_id == "turn-1":
            raise TurnFailedError("the guardrail tripped", "GuardrailTripwire")
        return echo(turn)

    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner) as session:
        await session.start("bad")
        snapshot = await session.turn_ended(1)
        assert len(runner.turns) == 1
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error == "GuardrailTripwire: the guardrail tripped"
        assert [m.text for m in snapshot.messages] == ["bad"]
        events = await session.events_until(AgentEventType.TURN_FAILED, "turn-1")
        assert events[-1].payload == {"error": "GuardrailTripwire: the guardrail tripped"}
        await session.send("good")
        snapshot = await session.turn_ended(2)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None
        assert snapshot.messages[-1].text == "echo good"


@pytest.mark.requirement("CORE-RUNNER-12")
@pytest.mark.parametrize(
    ("bad_call", "named"),
    [
        (tool_call(""), "blank"),
        (tool_call("   "), "blank"),
        (tool_call("a/b"), "'a/b'"),
        (tool_call("\ud800"), "UTF-8"),
    ],
)
async def test_an_unusable_tool_call_id_fails_the_turn_once(
    tmp_path: Path, bad_call: object, named: str
) -> None:
    runner = FunctionRunner(lambda turn: ask(bad_call))  # pyright: ignore[reportArgumentType] - on purpose
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert len(runner.turns) == 1
    assert runner.executions == []
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is not None
    assert named in snapshot.state.last_turn_error


@pytest.mark.requirement("CORE-FAIL-02")
async def test_a_retryable_failure_is_retried_and_then_fails_the_turn(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        raise ConnectionError(f"attempt {turn.attempt}")

    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner, FAST_RETRIES) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert [t.attempt for t in runner.turns] == [1, 2]
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error == "ConnectionError: attempt 2"


@pytest.mark.requirement("CORE-RUNNER-08")
async def test_a_failed_attempt_repeats_only_the_model_call(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if not turn.is_resuming:
            return ask(tool_call("c1"))
        if turn.attempt == 1:
            raise ModelError("overloaded", "ServerError", retry_after=1)
        return answer(outcomes(turn)[0])

    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert snapshot.messages[-1].text == "look ran"
    assert len(runner.executions) == 1
    assert len(runner.turns) == 3


@pytest.mark.requirement("CORE-FAIL-04")
async def test_a_wait_that_does_not_fit_the_window_fails_the_turn_at_once(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        raise ModelError("slow down", "RateLimitError", retry_after=timedelta(hours=1))

    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert len(runner.turns) == 1
    assert snapshot.state is not None
    error = snapshot.state.last_turn_error
    assert error is not None
    assert error.startswith("RateLimitError: slow down")
    assert "3600 s" in error


@pytest.mark.requirement("CORE-FAIL-11")
async def test_an_error_that_utf8_cannot_carry_is_told_and_counted(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        raise ValueError("half a smiley: \ud83d")

    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner, FAST_RETRIES) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert len(runner.turns) == 2
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error == "ValueError: half a smiley: \\ud83d"


@pytest.mark.requirement("CORE-FAIL-12")
async def test_a_cancellation_from_inside_the_runner_is_an_ordinary_failure(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.attempt == 1:
            raise asyncio.CancelledError("a library gave up")
        return echo(turn)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
    assert snapshot.messages[-1].text == "echo go"


@pytest.mark.requirement("CORE-TOOL-12")
async def test_a_failed_turn_leaves_a_note_about_the_calls_that_ran(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.turn_id == "turn-2":
            return answer(turn.messages[-2].text)
        if turn.is_resuming:
            raise TurnFailedError("no more", "MaxTurnsExceeded")
        return ask(
            tool_call("c1", "refund", ToolEffect.IDEMPOTENT_WRITE, '{"order": 7}'),
            tool_call("c2", "look", ToolEffect.READ, '{"order": 8}'),
        )

    def tool(call: DeferredToolExecution) -> ToolExecutionResult:
        if call.tool_call.tool_call_id == "c2":
            raise ToolExecutionError("no such order")
        return ToolExecutionResult("refunded", usage=AgentUsage(model_calls=1))

    runner = FunctionRunner(model, tool)
    async with running_session(tmp_path, runner) as session:
        await session.start("refund 7")
        snapshot = await session.turn_ended(1)
        assert snapshot.tool_calls == ()
        assert snapshot.usage == ONE_CALL + AgentUsage(model_calls=1)
        await session.send("and now?")
        snapshot = await session.turn_ended(2)
    assert [m.role for m in snapshot.messages] == [MessageRole.USER] * 3 + [MessageRole.ASSISTANT]
    assert snapshot.messages[1].turn_id == "turn-1"
    assert snapshot.messages[-1].text == (
        "[Dex] The previous turn failed after these tool calls ran:\n"
        '- refund {"order": 7} -> succeeded: refunded\n'
        '- look {"order": 8} -> failed: The tool call failed: no such order\n'
        "Do not repeat these tool calls unless the user asks again."
    )


@pytest.mark.requirement("CORE-FAIL-10")
async def test_a_note_that_cannot_be_built_does_not_block_the_session(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.turn_id == "turn-2":
            return echo(turn)
        if turn.is_resuming:
            raise TurnFailedError("no more")
        return ask(tool_call("c1"))

    def build(text: str) -> FrameworkMessage:
        if text.startswith("[Dex]"):
            raise RuntimeError("cannot build this")
        return user_message(text)

    async with running_session(tmp_path, FunctionRunner(model, build=build)) as session:
        await session.start("go")
        snapshot = await session.turn_ended(1)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error == (
            "TurnFailedError: no more "
            "(and no note could be stored: RuntimeError: cannot build this)"
        )
        await session.send("next")
        assert (await session.turn_ended(2)).messages[-1].text == "echo next"


@pytest.mark.requirement("CORE-RUNNER-01", "CORE-FAIL-10")
async def test_a_message_that_cannot_be_built_does_not_block_the_session(tmp_path: Path) -> None:
    def build(text: str) -> FrameworkMessage:
        if text == "broken":
            raise RuntimeError("cannot build this")
        if text == "wrong":
            return replace(user_message(text), role=MessageRole.ASSISTANT)
        return user_message(text)

    runner = FunctionRunner(build=build)
    async with running_session(tmp_path, runner) as session:
        await session.start("broken")
        snapshot = await session.turn_ended(1)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error == "RuntimeError: cannot build this"
        assert snapshot.messages == ()
        events = await session.events_until(AgentEventType.TURN_FAILED, "turn-1")
        assert events[-1].payload == {"error": "RuntimeError: cannot build this"}
        await session.send("wrong")
        snapshot = await session.turn_ended(2)
        assert snapshot.state is not None
        assert "role" in (snapshot.state.last_turn_error or "")
        await session.send("fine")
        snapshot = await session.turn_ended(3)
        assert [m.text for m in snapshot.messages] == ["fine", "echo fine"]
    assert runner.texts == ["broken"] * 3 + ["wrong"] * 3 + ["fine"]


@pytest.mark.requirement("CORE-STEP-14")
async def test_two_flows_share_one_registry_and_keep_their_sessions_apart(tmp_path: Path) -> None:
    flows = [
        AgentSessionFlow(FunctionRunner(lambda turn, n=name: answer(n)), flow_type=name)
        for name in ("First", "Second")
    ]
    async with running_sessions(tmp_path, *flows) as app:
        for flow in flows:
            name = flow.get_flow_type()
            await app.sessions(flow).start_session(f"session-{name}", "hi")
        for flow in flows:
            name = flow.get_flow_type()
            snapshot = await wait_for_agent_snapshot(
                app.sessions(flow), f"session-{name}", lambda s: s if len(s.messages) == 2 else None
            )
            assert snapshot.messages[-1].text == name
