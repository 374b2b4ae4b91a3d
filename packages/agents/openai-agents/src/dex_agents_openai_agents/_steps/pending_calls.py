"""Calls that wait for the session: out of a model Step as requests, back in as records."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, cast

from agents import Agent, RunContextWrapper, RunResultStreaming, RunState, ToolApprovalItem

from dex_agents import (
    AgentToolCall,
    AgentTurnContext,
    DeferredToolCall,
    ToolCallStatus,
    TurnFailedError,
)
from dex_agents_openai_agents._graph.graph import AgentGraph
from dex_agents_openai_agents._graph.policies import framework_effect
from dex_agents_openai_agents._steps.runner_settings import RunnerSettings
from dex_agents_openai_agents._stored.call_ids import to_session_call_id
from dex_agents_openai_agents._stored.history import InputItem
from dex_agents_openai_agents._stored.run_state import StoredRun
from dex_agents_openai_agents._stored.tool_results import (
    CallOrigin,
    is_replaced,
    model_text,
    withheld_by,
)
from dex_agents_openai_agents._tools import ToolKind, hosted_mcp, kind_of, kind_of_call
from dex_agents_openai_agents._tools.base import raw_field, value_field
from dex_agents_openai_agents._tools.gate_scope import GateScope, StepTool
from dex_agents_openai_agents._tools.recipe import recipe_of

_NO_DECISION: Final[Mapping[str, Any]] = {}


class PendingCalls:
    """The calls of one model Step that a session has run, or is to run.

    Args:
        settings: Of the runner.
        graph: Of the runner.
        turn: From the session.
        scope: Of the Step; receives what the gates return.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        graph: AgentGraph,
        turn: AgentTurnContext,
        scope: GateScope,
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._turn = turn
        self._scope = scope

    # --- before the model call: records become results ---------------------------------------

    def refuse_withheld_output(self) -> None:
        """Fail the turn if a guardrail refused what a tool returned.

        Raises:
            TurnFailedError: It did.
        """
        for record in self._turn.tool_calls.values():
            guardrail = withheld_by(record)
            if guardrail is not None:
                raise TurnFailedError(
                    f"the tool output guardrail {guardrail!r} refused the output of "
                    f"{record.tool_name!r}; the tool has run",
                    "ToolOutputGuardrailTripwireTriggered",
                )

    def require_tools(self, stored: StoredRun) -> None:
        """Check that every called tool is still there.

        Raises:
            TurnFailedError: One is gone.
        """
        for call_id in stored.unanswered_call_ids():
            record = self._record(call_id)
            origin = CallOrigin.of(record) if record is not None else None
            if record is None or origin is None:
                continue
            owner = self._graph.require(origin.agent_name)
            server = hosted_mcp.server_of(origin)
            is_there = (
                record.tool_name in owner.tools or owner.lists_tools_at_run_time
                if server is None
                else server in hosted_mcp.server_labels(owner.original)
            )
            if not is_there:
                raise TurnFailedError(
                    f"tool {record.tool_name!r} was called in this turn but is no longer a tool of "
                    f"agent {origin.agent_name!r}; the call is {record.status}",
                    "ToolMissing",
                )

    def settle(self, state: RunState[Any, Agent[Any]], context: RunContextWrapper[Any]) -> None:
        """Decide every pending call by its record.

        Of agents whose nested runs are Steps, one runs at a time, so that a Step makes one model
        call; the others stay pending.

        Raises:
            TurnFailedError: A call has no final record.
        """
        results: dict[str, object] = {}
        pending = state.get_interruptions()
        is_nested_run_open = any(self._is_nested(item) for item in pending)
        for item in pending:
            call_id = item.call_id or ""
            record = self._record(call_id)
            if record is None and _is_decided(item, context):
                continue
            if record is None or not record.status.is_final:
                raise TurnFailedError(
                    f"the tool call {call_id!r} has no final result, so the turn cannot go on",
                    "ToolResultMissing",
                )
            # `RunState.approve` compares each call with all others, which takes seconds for 80
            # parallel calls; only it knows the owner of a nested call.
            decide = _Decisions(item, state if self._is_nested(item) else context)
            if hosted_mcp.is_request(item):
                hosted_mcp.settle(record, decide)
                continue
            if recipe_of(self._listed(item)) is not None and _may_start(record):
                if not is_nested_run_open:
                    is_nested_run_open = True
                    decide.approve()
                continue
            recorded = self._recorded(item, record)
            if recorded is not None:
                results[call_id] = recorded
                decide.approve()
            else:
                # A rejection carries any text to the model, also past a declared output type.
                is_plain = record.status is ToolCallStatus.REJECTED
                decide.reject(record.rejection_message if is_plain else model_text(record))
        self._scope.results = results

    def _is_nested(self, item: ToolApprovalItem) -> bool:
        return self._graph.require(item.agent.name).recipe is not None

    def _recorded(self, item: ToolApprovalItem, record: AgentToolCall) -> object | None:
        """Return what the gate of a call gives back, or `None` for a call to reject."""
        owner = self._graph.require(item.agent.name)
        kind = kind_of_call(raw_field(item, "type"))
        if kind is None:
            return None
        # A tool of a server may have left the list since; its result is given back all the same.
        tool = self._listed(item)
        if record.status is ToolCallStatus.SUCCEEDED and not is_replaced(record):
            return kind.recorded(record, owner.original, tool)
        if record.status is ToolCallStatus.FAILED:
            return kind.failed(model_text(record))
        return None

    def replayed_outputs(self, stored: StoredRun) -> list[InputItem]:
        """Return the outputs of the turn's open calls as items, without the framework's help.

        Raises:
            TurnFailedError: A nested run is open, which items alone cannot tell.
        """
        outputs: list[InputItem] = []
        for call_id, call in stored.unanswered_calls():
            record = self._record(call_id)
            if record is None:
                continue
            if call.get("type") == hosted_mcp.REQUEST_TYPE:
                outputs.append(hosted_mcp.response_item(call_id, record))
                continue
            origin = CallOrigin.of(record)
            owner = self._graph.agents.get(origin.agent_name) if origin is not None else None
            tool = owner.tools.get(record.tool_name) if owner is not None else None
            if recipe_of(tool) is not None and _may_start(record):
                raise TurnFailedError(
                    f"the nested run of the agent tool {record.tool_name!r} was kept by another "
                    "release of the framework and cannot go on",
                    "NestedRunLost",
                )
            kind = kind_of_call(call.get("type"))
            if kind is not None:
                output = kind.output_item(call_id, record, model_text(record))
                caller = call.get("caller")
                outputs.append(output if caller is None else {**output, "caller": caller})
        return outputs

    def _record(self, call_id: str) -> AgentToolCall | None:
        return self._turn.recorded_tool_call(to_session_call_id(call_id))

    # --- after the model call: requests become calls of the session ---------------------------

    async def defer(self, result: RunResultStreaming) -> tuple[DeferredToolCall, ...]:
        """Return the calls that the session is to run, in model order.

        A call that the application's `on_approval` refuses is decided here and is not among them.

        Raises:
            TurnFailedError: A call waits for something a session cannot give.
        """
        order = {
            value_field(output, "call_id") or value_field(output, "id"): position
            for position, output in enumerate(result.raw_responses[-1].output)
        }
        # The framework lists pending calls by kind of tool, the session wants model order.
        pending = sorted(
            (item for item in result.interruptions if not self._waits_for_its_start(item)),
            key=lambda item: order.get(item.call_id, len(order)),
        )
        calls = [await self._defer(result.context_wrapper, item) for item in pending]
        return tuple(call for call in calls if call is not None)

    def _waits_for_its_start(self, item: ToolApprovalItem) -> bool:
        """Whether the session has the call already: an agent tool that another one goes before.

        Raises:
            TurnFailedError: A nested agent used an id that the turn has used before.
        """
        if self._record(item.call_id or "") is None:
            return False
        if self._is_nested(item):
            raise TurnFailedError(
                f"the nested agent {item.agent.name!r} used the tool call id {item.call_id!r}, "
                "which this turn has used before, so their results could not be told apart",
                "ToolCallIdRepeated",
            )
        return True

    async def _defer(
        self, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> DeferredToolCall | None:
        call_id = to_session_call_id(item.call_id or "")
        if hosted_mcp.is_request(item):
            name = hosted_mcp.policy_name(item)
            return DeferredToolCall(
                tool_call_id=call_id,
                tool_name=name,
                arguments=item.arguments or "",
                policy=self._turn.resolve_tool_policy(name),
                requires_approval=True,
                framework_payload=hosted_mcp.origin(item).encode(),
            )
        kind, tool = self._tool(item)
        is_needed = await self._needs_approval(kind, tool, context, item)
        decision = await self._decision(kind, tool, context, item) if is_needed else _NO_DECISION
        if decision.get("approve") is False:
            reason = decision.get("reason")
            context.reject_tool(
                item, rejection_message=reason if isinstance(reason, str) and reason else None
            )
            return None
        name = kind.policy_name(tool)
        effect = framework_effect(tool, trust_mcp_hints=self._settings.trust_mcp_hints)
        origin = CallOrigin(item.agent.name, tool.name, item.tool_namespace, kind.details(item))
        return DeferredToolCall(
            tool_call_id=call_id,
            tool_name=name,
            arguments=kind.arguments(item),
            policy=self._turn.resolve_tool_policy(name, effect),
            requires_approval=(is_needed and decision.get("approve") is not True) or None,
            framework_payload=origin.encode(),
        )

    def _listed(self, item: ToolApprovalItem) -> StepTool | None:
        return self._scope.listed.get((item.agent.name, item.qualified_name or ""))

    def _tool(self, item: ToolApprovalItem) -> tuple[ToolKind[Any], StepTool]:
        tool = self._listed(item)
        kind = kind_of(tool) if tool is not None else None
        if tool is None or kind is None:
            raise TurnFailedError(
                f"the call of {item.qualified_name!r} by agent {item.agent.name!r} waits for an "
                "approval that a session cannot give: its tool does not run as a Step",
                "ApprovalNotSupported",
            )
        return kind, tool

    async def _needs_approval(
        self,
        kind: ToolKind[Any],
        tool: StepTool,
        context: RunContextWrapper[Any],
        item: ToolApprovalItem,
    ) -> bool:
        try:
            return await kind.needs_approval(tool, context, item)
        except Exception:
            # The call is paid for and the rule is broken: a person decides.
            return True

    async def _decision(
        self,
        kind: ToolKind[Any],
        tool: StepTool,
        context: RunContextWrapper[Any],
        item: ToolApprovalItem,
    ) -> Mapping[str, Any]:
        """Return what the application itself decides about a call that needs approval."""
        decide = kind.on_approval(tool)
        if decide is None:
            return _NO_DECISION
        try:
            decision = decide(context, item)
            decision = await decision if inspect.isawaitable(decision) else decision
        except Exception:
            return _NO_DECISION
        return (
            cast("Mapping[str, Any]", decision) if isinstance(decision, Mapping) else _NO_DECISION
        )


class _Decisions:
    """Decides one pending call.

    Args:
        item: The call.
        decider: The run context, or the whole state for a call of a nested run.
    """

    def __init__(
        self,
        item: ToolApprovalItem,
        decider: RunContextWrapper[Any] | RunState[Any, Agent[Any]],
    ) -> None:
        self._item = item
        self._decider = decider

    def approve(self) -> None:
        if isinstance(self._decider, RunState):
            self._decider.approve(self._item)
        else:
            self._decider.approve_tool(self._item)

    def reject(self, message: str | None) -> None:
        if isinstance(self._decider, RunState):
            self._decider.reject(self._item, rejection_message=message)
        else:
            self._decider.reject_tool(self._item, rejection_message=message)


def _may_start(record: AgentToolCall) -> bool:
    """Whether a nested run may begin. A lost Step changes nothing: it had nothing to do."""
    return record.status in (ToolCallStatus.SUCCEEDED, ToolCallStatus.OUTCOME_UNKNOWN)


def _is_decided(item: ToolApprovalItem, context: RunContextWrapper[Any]) -> bool:
    status = context.get_approval_status(
        item.tool_name or "",
        item.call_id or "",
        tool_namespace=item.tool_namespace,
        existing_pending=item,
        tool_lookup_key=item.tool_lookup_key,
    )
    return status is not None
