"""The application: two agents of the OpenAI Agents SDK, and the durable Flow around them.

Nothing in the agents is special. What makes them durable is `build_flow`, with one line per tool
that says what a call does to the world.
"""

from __future__ import annotations

import json

from agents import Agent, RunConfig, function_tool
from shop import Shop

from dex_agents import AgentSessionFlow, ToolEffect, ToolExecutionError, ToolPolicy
from dex_agents_openai_agents import (
    get_current_deferred_tool_execution,
    openai_agents_session_flow,
)


@function_tool
async def look_up_order(order_id: str) -> str:
    """Read one order of the customer."""
    order = await Shop.from_environment().read_order(order_id, _call_key())
    if order is None:
        raise ToolExecutionError(f"there is no order {order_id!r}")
    return json.dumps(order)


@function_tool
def open_case(order_id: str, reason: str) -> str:
    """Open a case about an order, before anything is changed."""
    case_id = Shop.from_environment().open_case(order_id, reason, _call_key())
    return json.dumps({"case_id": case_id})


@function_tool
def refund_order(order_id: str, amount: float) -> str:
    """Pay the price of an order back to the customer."""
    refund_id = Shop.from_environment().refund(order_id, amount, _call_key())
    return json.dumps({"refund_id": refund_id, "amount": amount})


def build_flow(model: str | None = None) -> AgentSessionFlow:
    """Build the session Flow of the support agents.

    Args:
        model: Name of the model; the SDK's default when left out.
    """
    refunds = Agent[None](
        name="Refunds",
        instructions=(
            "You are the refund desk. Look the order up, open a case, then refund the full price. "
            "Say in a few words what you are doing, and never refund an order twice."
        ),
        tools=[look_up_order, open_case, refund_order],
        model=model,
    )
    triage = Agent[None](
        name="Triage",
        instructions="You triage customers. Hand everything about money over to Refunds.",
        handoffs=[refunds],
        model=model,
    )
    return openai_agents_session_flow(
        triage,
        flow_type="SupportAgent",
        tool_policies={
            "look_up_order": ToolPolicy(ToolEffect.READ),
            "open_case": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
            "refund_order": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
        },
        run_config=RunConfig(workflow_name="Support agent"),
    )


def _call_key() -> str:
    """Return the key of the running call: the same on every attempt, and never used again."""
    execution = get_current_deferred_tool_execution()
    return "outside a session" if execution is None else execution.idempotency_key
