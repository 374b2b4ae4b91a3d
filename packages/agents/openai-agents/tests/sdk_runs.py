"""Runs of the bare SDK, for the tests of what it does by itself."""

from __future__ import annotations

import json
from typing import Any

from agents import Agent, RunContextWrapper, Runner, RunResult, RunResultStreaming, RunState

USER: list[Any] = [{"role": "user", "content": "go"}]


async def soft_stopped(agent: Agent[Any], source: Any, **options: Any) -> RunResultStreaming:
    """Stream a run and stop it softly at the model's first event, as a model Step does."""
    result = Runner.run_streamed(agent, source, **options)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel(mode="after_turn")
    return result


def stored(result: RunResult | RunResultStreaming) -> dict[str, Any]:
    """The state of a stopped run, as it comes back from a store."""
    return json.loads(json.dumps(result.to_state().to_json()))


async def restored(
    agent: Agent[Any],
    state: RunResult | RunResultStreaming | dict[str, Any],
    context: RunContextWrapper[Any] | None = None,
) -> RunState[Any, Agent[Any]]:
    """A stopped run, restored from JSON as in another process."""
    plain = state if isinstance(state, dict) else stored(state)
    return await RunState.from_json(agent, plain, context_override=context)


async def approved(
    agent: Agent[Any], stopped: RunResult | RunResultStreaming | dict[str, Any]
) -> RunState[Any, Any]:
    """A stopped run, restored from JSON, with every pending call approved."""
    state = await restored(agent, stopped)
    for item in state.get_interruptions():
        state.approve(item)
    return state


def pending_ids(result: RunResult | RunResultStreaming | RunState[Any, Any]) -> list[str | None]:
    """The ids of the pending calls, in the SDK's order."""
    items = result.get_interruptions() if isinstance(result, RunState) else result.interruptions
    return [item.call_id for item in items]
