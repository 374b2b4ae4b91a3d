"""What a runner was configured with, and the run configuration derived from it for each Step."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

from agents import Model, RunConfig, RunErrorHandlers, RunHooks

from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._graph.handoff_filters import over_whole_response
from dex_agents_openai_agents._model.model_tap import TappedProvider, tap_model
from dex_agents_openai_agents._steps.run_context import ContextSource
from dex_agents_openai_agents.settings import NextTurnAgent


@dataclass(frozen=True)
class RunnerSettings:
    """Configuration of a runner; see `OpenAIAgentsRunner` for the meaning of each field."""

    run_config: RunConfig
    context: ContextSource
    hooks: RunHooks[Any] | None
    max_turns: int | None
    error_handlers: RunErrorHandlers[Any] | None
    next_turn_agent: NextTurnAgent
    trust_mcp_hints: bool
    tool_attempts: int

    @property
    def omit_reasoning_ids(self) -> bool:
        """Whether reasoning is replayed without the provider's ids."""
        return self.run_config.reasoning_item_id_policy == "omit"

    def turn_run_config(self, session_id: str, turn_id: str) -> RunConfig:
        """Return the application's configuration: one trace per turn, grouped by session."""
        config = self.run_config
        return dataclasses.replace(
            config,
            tracing_disabled=config.tracing_disabled or not sdk.has_trace_reader(config.tracing),
            group_id=config.group_id or session_id,
            trace_id=config.trace_id or _trace_id(session_id, turn_id),
        )

    def model_run_config(self, session_id: str, turn_id: str) -> RunConfig:
        """Return the configuration of a model Step."""
        model = self.run_config.model
        handoff_filter = self.run_config.handoff_input_filter
        return dataclasses.replace(
            self.turn_run_config(session_id, turn_id),
            model=tap_model(model) if isinstance(model, Model) else model,
            model_provider=TappedProvider(self.run_config.model_provider),
            handoff_input_filter=(
                None if handoff_filter is None else over_whole_response(handoff_filter)
            ),
        )

    def tool_run_config(self, session_id: str, turn_id: str) -> RunConfig:
        """Return the configuration of the run that carries out one recorded call.

        Whatever would reach a real model or judge its answer is left out: the model of that run is
        a recording.
        """
        return dataclasses.replace(
            self.turn_run_config(session_id, turn_id),
            model=None,
            model_settings=None,
            call_model_input_filter=None,
            input_guardrails=None,
            output_guardrails=None,
            sandbox=None,
            tool_execution=None,
        )


def _trace_id(session_id: str, turn_id: str) -> str:
    # The same in every process that works on the turn.
    return f"trace_{hashlib.sha256(f'{session_id}/{turn_id}'.encode()).hexdigest()[:32]}"
