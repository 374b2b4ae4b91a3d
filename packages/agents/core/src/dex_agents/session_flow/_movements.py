"""Movements to the Steps, each with its own options.

The options of a movement replace those of its Step completely, and a Step without the right loads
fails at run time only. So there is one builder per Step, and no Step is ever moved to without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dex import AttributeMapLoad, Step, StepMovement, StepOptions

from dex_agents._internal_values import AgentSessionIndex, ModelStepBudget
from dex_agents._session.history import MAX_LOAD_BYTES, ModelLoads, block_start, round_ids
from dex_agents._session.ids import turn_slot_key
from dex_agents.options import AgentSessionOptions
from dex_agents.persistence import (
    AGENT_MESSAGE_IDS,
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_TOOL_CALLS,
    AGENT_TOOL_OUTPUTS,
    PENDING_INTERRUPTS,
    message_sequence_key,
)
from dex_agents.session_flow._options import BASE_OPTIONS, limited_options
from dex_agents.values import AgentState, AgentToolCall


@dataclass(frozen=True)
class StepTypes:
    """The Step classes, so that this module need not import the Steps that import it."""

    await_user_message: type[Step[None]]
    run_model: type[Step[None]]
    await_tool_approval: type[Step[str]]
    call_tool: type[Step[str]]
    call_single_attempt_tool: type[Step[str]]
    record_tool_failure: type[Step[str]]
    record_tool_outcome_unknown: type[Step[str]]
    resume_turn: type[Step[int]]
    record_turn_failure: type[Step[None]]


class Movements:
    """Builds the movements of one session Flow.

    Args:
        steps: The Step classes.
        options: Options of the Flow.
    """

    def __init__(self, steps: StepTypes, options: AgentSessionOptions) -> None:
        self._steps = steps
        self._options = options

    def await_user_message(self, state: AgentState) -> StepMovement[None]:
        """Wait for the message that starts the next turn."""
        slot = AGENT_MESSAGE_IDS.load(turn_slot_key(state.turn_count + 1))
        return StepMovement(
            self._steps.await_user_message,
            None,
            replace(BASE_OPTIONS, execute_load_attribute_map_instances=(slot,)),
        )

    def run_model(
        self,
        index: AgentSessionIndex,
        loads: ModelLoads,
        budget: ModelStepBudget | None = None,
        now: datetime | None = None,
    ) -> StepMovement[None]:
        """Make a model call.

        Args:
            index: The session's index, as it is stored with this movement.
            loads: What the task carries.
            budget: What a Step that hands itself on has used up.
            now: The worker's clock; needed with a budget.
        """
        limits = self._options.model_limits
        attempts, duration = limits.max_attempts, limits.total_duration
        if budget is not None and now is not None:
            attempts -= budget.attempts_used
            spent = max(0.0, (now - budget.first_attempt_at).total_seconds())
            duration = timedelta(seconds=max(1, math.floor(duration.total_seconds() - spent)))
        options = replace(
            limited_options(limits, max(1, attempts), duration),
            execute_load_attribute_map_instances=_model_loads(loads),
        )
        return StepMovement(
            self._steps.run_model,
            None,
            options.on_execute_failure_proceed_to(
                self._steps.record_turn_failure, _turn_failure_options(index)
            ),
        )

    def tool_call(self, record: AgentToolCall) -> StepMovement[str]:
        """Run one call, after its approval where it needs one."""
        if record.requires_approval:
            return self.await_tool_approval(record.tool_call_id)
        return self.approved_tool_call(record)

    def await_tool_approval(self, tool_call_id: str) -> StepMovement[str]:
        """Wait for the answer to one approval."""
        options = replace(
            _record_options(tool_call_id), execute_lock_attributes=(PENDING_INTERRUPTS.lock(),)
        )
        return StepMovement(self._steps.await_tool_approval, tool_call_id, options)

    def approved_tool_call(self, record: AgentToolCall) -> StepMovement[str]:
        """Run one call now: again after a crash where that is safe, else once."""
        limits = self._options.tool_limits
        repeatable = record.effect.is_repeatable
        options = replace(
            limited_options(limits, limits.max_attempts if repeatable else 1),
            execute_load_attribute_map_instances=(AGENT_TOOL_CALLS.load(record.tool_call_id),),
        ).on_execute_failure_proceed_to(
            self._steps.record_tool_failure
            if repeatable
            else self._steps.record_tool_outcome_unknown,
            _record_options(record.tool_call_id),
        )
        return StepMovement(
            self._steps.call_tool if repeatable else self._steps.call_single_attempt_tool,
            record.tool_call_id,
            options,
        )

    def resume_turn(self, index: AgentSessionIndex, expected: int) -> StepMovement[int]:
        """Wait until the calls of the newest model response are final.

        Args:
            index: The session's index, as it is stored with this movement.
            expected: Number of results still to come.
        """
        loads = tuple(AGENT_TOOL_CALLS.load(call_id) for call_id in round_ids(index))
        return StepMovement(
            self._steps.resume_turn,
            expected,
            replace(BASE_OPTIONS, execute_load_attribute_map_instances=loads),
        )

    def record_turn_failure(self, index: AgentSessionIndex) -> StepMovement[None]:
        """Record why the turn failed."""
        return StepMovement(self._steps.record_turn_failure, None, _turn_failure_options(index))


def _record_options(tool_call_id: str) -> StepOptions:
    return replace(
        BASE_OPTIONS,
        execute_load_attribute_map_instances=(AGENT_TOOL_CALLS.load(tool_call_id),),
    )


def _turn_failure_options(index: AgentSessionIndex) -> StepOptions:
    """Load the newest records that fit into one task; older ones are counted in the note."""
    chosen: list[AttributeMapLoad] = []
    used = 0
    for entry in reversed(index.tool_calls):
        used += entry.record_bytes
        if used > MAX_LOAD_BYTES:
            break
        chosen.append(AGENT_TOOL_CALLS.load(entry.tool_call_id))
    return replace(BASE_OPTIONS, execute_load_attribute_map_instances=tuple(chosen))


def _model_loads(loads: ModelLoads) -> tuple[AttributeMapLoad, ...]:
    return (
        *_message_loads(loads.messages),
        *(
            AGENT_MESSAGE_SIZES.load(message_sequence_key(block_start(block)))
            for block in loads.blocks
        ),
        *(AGENT_TOOL_CALLS.load(call_id) for call_id in loads.records),
        *(AGENT_TOOL_OUTPUTS.load(call_id) for call_id in loads.outputs),
    )


def _message_loads(sequences: Sequence[int]) -> list[AttributeMapLoad]:
    return [AGENT_MESSAGES.load(message_sequence_key(sequence)) for sequence in sequences]
