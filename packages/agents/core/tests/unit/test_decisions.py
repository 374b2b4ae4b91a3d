"""Every movement of the core maps onto the wire: routes, options, loads and locks are valid.

The SDK checks none of this when a Flow is registered; a mistake would appear as a Step that fails
again and again.
"""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from dex import CodecRegistry, Registry, StepMovement, go_to_many
from dex._server_protocol import NegotiatedServerProtocol
from dex._value_mapper import ValueMapper
from dex._worker_dispatcher import WorkerDispatcher
from dex.dexpb import dex_pb2 as pb
from session_harness import FunctionRunner

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    AgentState,
    AgentStatus,
    AgentToolCall,
    StepLimits,
    ToolEffect,
    agent_codecs,
)
from dex_agents import _session as decisions
from dex_agents._internal_values import AgentSessionIndex, ModelStepBudget, ToolCallEntry
from dex_agents._session.history import MAX_LOAD_BYTES, ModelLoads
from dex_agents.session_flow._runtime import SessionStep

NOW = datetime(2026, 5, 1, tzinfo=UTC)
STATE = AgentState(AgentStatus.RUNNING_TOOLS, 1000, 3, "turn-1001")
INDEX = AgentSessionIndex(
    (10, 20), 0, (ToolCallEntry("a", 100), ToolCallEntry("é 1", 100, 9000)), 0, 1
)
LOADS = ModelLoads((1, 2, 3), (0,), ("a", "é 1"), ("é 1",))
SYNC = pb.STEP_DURABILITY_SYNC

FLOW = AgentSessionFlow(
    FunctionRunner(), flow_type="Mapped", options=AgentSessionOptions(tool_limits=StepLimits())
)
REGISTRY = Registry([FLOW], CodecRegistry(agent_codecs()), allow_async_handlers=True)
REGISTERED = REGISTRY._registered_flows["Mapped"]
MOVEMENTS = cast(SessionStep[None], next(iter(REGISTERED.steps.values())).step).session.movements


def record(effect: ToolEffect, requires_approval: bool = False) -> AgentToolCall:
    return AgentToolCall("é 1", "turn-1001", "act", "{}", effect, requires_approval, 0)


def mapped(movement: StepMovement[Any]) -> pb.StepMovement:
    """Map one movement as a worker would."""
    dispatcher = WorkerDispatcher(
        REGISTRY, ValueMapper(REGISTRY.codec_registry), cast(Any, None), NegotiatedServerProtocol()
    )
    (result,) = dispatcher._map_decision(REGISTERED, go_to_many(movement)).next_steps
    return result


ALL = {
    "await_user_message": MOVEMENTS.await_user_message(STATE),
    "run_model": MOVEMENTS.run_model(INDEX, LOADS),
    "await_tool_approval": MOVEMENTS.tool_call(record(ToolEffect.READ, True)),
    "call_tool": MOVEMENTS.tool_call(record(ToolEffect.IDEMPOTENT_WRITE)),
    "call_single_attempt_tool": MOVEMENTS.tool_call(record(ToolEffect.UNCLASSIFIED)),
    "resume_turn": MOVEMENTS.resume_turn(INDEX, 1),
    "record_turn_failure": MOVEMENTS.record_turn_failure(INDEX),
}


@pytest.mark.requirement("CORE-STEP-09")
@pytest.mark.parametrize("name", ALL)
def test_every_movement_maps_and_asks_for_durable_results(name: str) -> None:
    options = mapped(ALL[name]).step_options
    assert options.execute_durability_override == SYNC
    assert options.wait_for_durability_override == SYNC
    if options.execute_failure_proceed_step_type:
        assert options.execute_failure_proceed_step_options.execute_durability_override == SYNC


@pytest.mark.requirement("CORE-STEP-11")
@pytest.mark.parametrize(
    "name", ["await_user_message", "await_tool_approval", "resume_turn", "record_turn_failure"]
)
def test_a_step_without_a_route_retries_for_thirty_days(name: str) -> None:
    options = mapped(ALL[name]).step_options
    month = int(timedelta(days=30).total_seconds())
    assert options.execute_retry_policy.total_duration_seconds == month
    assert options.wait_for_retry_policy.total_duration_seconds == month
    assert options.execute_retry_policy.maximum_attempts == 0
    assert not options.execute_failure_proceed_step_type


@pytest.mark.requirement("CORE-STEP-04")
def test_the_model_step_has_the_limits_and_the_route_of_the_specification() -> None:
    movement = mapped(ALL["run_model"])
    options = movement.step_options
    assert movement.step_type == "RunModel"
    assert options.execute_timeout_seconds == 900
    assert options.heartbeat_timeout_seconds == 120
    assert options.execute_retry_policy.maximum_attempts == 3
    assert options.execute_retry_policy.total_duration_seconds == 1800
    assert options.execute_failure_proceed_step_type == "RecordTurnFailure"
    assert sorted(options.execute_load_attribute_map_instances) == [
        "AgentMessageSizes/000000000001",
        "AgentMessages/000000000001",
        "AgentMessages/000000000002",
        "AgentMessages/000000000003",
        "AgentToolCalls/%C3%A9%201",
        "AgentToolCalls/a",
        "AgentToolOutputs/%C3%A9%201",
    ]
    route = options.execute_failure_proceed_step_options
    assert sorted(route.execute_load_attribute_map_instances) == [
        "AgentToolCalls/%C3%A9%201",
        "AgentToolCalls/a",
    ]


@pytest.mark.requirement("CORE-COST-05")
def test_a_model_step_that_hands_itself_on_renews_nothing() -> None:
    budget = ModelStepBudget(2, NOW, 1, 3)
    movement = MOVEMENTS.run_model(INDEX, LOADS, budget, NOW + timedelta(seconds=100.4))
    policy = mapped(movement).step_options.execute_retry_policy
    assert policy.maximum_attempts == 1
    assert policy.total_duration_seconds == 1699


@pytest.mark.requirement(
    "CORE-EFFECT-01", "CORE-EFFECT-02", "CORE-EFFECT-03", "CORE-STEP-10", "CORE-STEP-17"
)
@pytest.mark.parametrize(
    ("effect", "step", "attempts", "route"),
    [
        (ToolEffect.READ, "CallTool", 3, "RecordToolFailure"),
        (ToolEffect.IDEMPOTENT_WRITE, "CallTool", 3, "RecordToolFailure"),
        (ToolEffect.NON_IDEMPOTENT_WRITE, "CallSingleAttemptTool", 1, "RecordToolOutcomeUnknown"),
        (ToolEffect.UNCLASSIFIED, "CallSingleAttemptTool", 1, "RecordToolOutcomeUnknown"),
    ],
)
def test_a_tool_step_loads_only_its_record_and_so_does_its_route(
    effect: ToolEffect, step: str, attempts: int, route: str
) -> None:
    for movement in (
        MOVEMENTS.tool_call(record(effect)),
        MOVEMENTS.approved_tool_call(record(effect, True)),
    ):
        wire = mapped(movement)
        options = wire.step_options
        assert wire.step_type == step
        assert wire.step_input.string_value == "é 1"
        assert options.execute_retry_policy.maximum_attempts == attempts
        assert options.execute_failure_proceed_step_type == route
        loads = ["AgentToolCalls/%C3%A9%201"]
        assert list(options.execute_load_attribute_map_instances) == loads
        assert not options.execute_lock_attribute_keys
        routed = options.execute_failure_proceed_step_options
        assert list(routed.execute_load_attribute_map_instances) == loads


@pytest.mark.requirement("CORE-STEP-12")
def test_only_the_approval_step_holds_the_lock_on_the_interrupts() -> None:
    for name, movement in ALL.items():
        options = mapped(movement).step_options
        keys = ["PendingInterrupts"] if name == "await_tool_approval" else []
        assert list(options.execute_lock_attribute_keys) == keys
        assert not options.wait_for_lock_attribute_keys


def test_waiting_for_a_message_loads_the_slot_of_the_next_turn() -> None:
    options = mapped(ALL["await_user_message"]).step_options
    assert list(options.execute_load_attribute_map_instances) == ["AgentMessageIds/~1"]


@pytest.mark.requirement("CORE-COST-14")
def test_resuming_loads_the_records_of_the_newest_response_only() -> None:
    options = mapped(ALL["resume_turn"]).step_options
    assert list(options.execute_load_attribute_map_instances) == ["AgentToolCalls/%C3%A9%201"]


@pytest.mark.requirement("CORE-COST-13")
def test_recording_a_failure_loads_no_more_records_than_a_task_may_carry() -> None:
    index = AgentSessionIndex(tool_calls=tuple(ToolCallEntry(f"c{n}", 900_000) for n in range(6)))
    loads = mapped(MOVEMENTS.record_turn_failure(index)).step_options
    names = list(loads.execute_load_attribute_map_instances)
    assert names == ["AgentToolCalls/c3", "AgentToolCalls/c4", "AgentToolCalls/c5"]
    assert len(names) * 900_000 <= MAX_LOAD_BYTES


@pytest.mark.requirement("CORE-STEP-01")
def test_the_start_step_and_only_it_starts_a_session() -> None:
    starting = [step.name for step in REGISTERED.steps.values() if step.starting]
    assert starting == ["StartAgentSession"]
    waiting = {step.name for step in REGISTERED.steps.values() if not step.skips_wait_for}
    assert waiting == {"AwaitUserMessage", "AwaitToolApproval", "ResumeTurn"}
    assert all(inspect.iscoroutinefunction(step.step.execute) for step in REGISTERED.steps.values())


@pytest.mark.requirement("CORE-STEP-12", "CORE-STORE-01", "CORE-RPC-02")
def test_the_stored_names_are_those_of_the_specification() -> None:
    assert set(REGISTERED.persistence) >= {
        "AgentState",
        "AgentMessages",
        "FrameworkRunState",
        "AgentToolCalls",
        "PendingInterrupts",
        "AgentUsage",
        "QueuedUserMessages",
        "InterruptResolutions",
        "ToolCallResults",
        "AgentEvents",
        "AgentMessageIds",
        "PendingTurnFailure",
        "AgentStatus",
        "PendingApprovalCount",
    }
    assert set(REGISTERED.rpcs) == {
        "send_user_message",
        "resolve_interrupt",
        "get_agent_snapshot",
        "list_agent_messages",
    }
    assert REGISTERED.rpcs["resolve_interrupt"].locks == ("PendingInterrupts",)
    assert REGISTERED.rpcs["send_user_message"].options.is_transactional
    for name in ("get_agent_snapshot", "list_agent_messages"):
        assert not REGISTERED.rpcs[name].options.is_transactional
        assert not REGISTERED.rpcs[name].locks


@pytest.mark.requirement("CORE-STEP-18")
@pytest.mark.parametrize("name", ALL)
def test_no_movement_loads_a_channel(name: str) -> None:
    options = mapped(ALL[name]).step_options
    set_fields = {definition.name for definition, _ in options.ListFields()}
    assert not {field for field in set_fields if "load" in field and "channel" in field}


@pytest.mark.requirement("CORE-STEP-19")
def test_what_decides_about_a_session_needs_no_sdk() -> None:
    folder = Path(decisions.__file__).parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    assert "turns.py" in sources
    needed = re.compile(r"^(from|import) (dex|dex_agents\.session_flow)\b", re.MULTILINE)
    assert [name for name, text in sources.items() if needed.search(text)] == []
