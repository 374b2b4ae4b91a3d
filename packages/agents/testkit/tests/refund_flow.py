"""A session Flow that a crashable agent finds by name: a look-up, a refund, then an answer."""

from __future__ import annotations

from dex_agents import AgentSessionFlow, AgentSessionOptions, ToolEffect, ToolPolicy
from dex_agents.runner import DeferredToolExecution, ToolExecutionResult
from dex_agents_testkit import ScriptedRunner, parse_runner_script
from dex_agents_testkit.faults import reach_place

SCRIPT = {
    "turn_in_message": True,
    "tools": {
        "look_up": {"effect": "read", "output": "order $order is paid"},
        "refund": {"effect": "non_idempotent_write", "output": "refunded $order"},
    },
}
REFUND = """{"replies": [
    {"tool_calls": [{"id": "c1", "name": "look_up", "arguments": {"order": "7"}}]},
    {"tool_calls": [{"id": "c2", "name": "refund", "arguments": {"order": "7"}}]},
    {"message": "All done."}
]}"""
THANKS = '{"replies": [{"message": "You are welcome."}]}'


class TwoHalves(ScriptedRunner):
    """A refund whose effect has two halves."""

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        if call.tool_call.tool_name == "refund":
            reach_place("half-refunded")
        return await super().execute_deferred_tool_call(call)


def build_flow() -> AgentSessionFlow:
    policies = {
        "look_up": ToolPolicy(ToolEffect.READ),
        "refund": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
    }
    return AgentSessionFlow(
        TwoHalves(parse_runner_script(SCRIPT)),
        flow_type="Refunds",
        options=AgentSessionOptions(tool_policies=policies),
    )
