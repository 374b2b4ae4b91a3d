"""`ScriptedRunner` keeps the contract of a runner, as far as a script can show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from dex_agents.testing import InvocationLog
from dex_agents_testkit import (
    FailureKind,
    RunnerScript,
    ScriptedFailure,
    ScriptedReply,
    ScriptedRunner,
    ScriptedTool,
    ScriptedToolCall,
    ScriptedTurn,
)
from dex_agents_testkit.conformance import (
    Ability,
    AdapterConformance,
    ModelFailure,
    ModelReply,
    ScenarioTool,
    Stage,
)
from dex_agents_testkit.runner_script import MODEL_CALL


class TestScriptedRunner(AdapterConformance):
    # A script has no model that could be given anything, tools that return text, and takes ids and
    # effects as they are.
    abilities = frozenset(Ability) - {
        Ability.MODEL_INPUT,
        Ability.STRUCTURED_OUTPUTS,
        Ability.EFFECT_HINTS,
        Ability.ANY_CALL_ID,
    }

    def make_runner(self, stage: Stage) -> ScriptedRunner:
        turns = tuple(
            ScriptedTurn(tuple(scripted_reply(stage, reply) for reply in replies))
            for replies in stage.scenario.turns
        )
        tools = {tool.name: scripted_tool(tool) for tool in stage.scenario.tools}
        return ScriptedRunner(RunnerScript(turns, tools), log=StageLog(stage))


class StageLog(InvocationLog):
    """Tells the stage what the runner records."""

    def __init__(self, stage: Stage) -> None:
        self.path = Path()
        self.stage = stage

    def record(self, name: str, **details: object) -> None:
        if name == MODEL_CALL:
            self.stage.record_model_call()
            return
        key = cast("dict[str, str]", details["arguments"])["key"]
        self.stage.record_tool_run(name, key, cast(str, details["idempotency_key"]))


def scripted_reply(stage: Stage, reply: ModelReply) -> ScriptedReply:
    outcome: dict[str, Any] = {"message": reply.text}
    if reply.tool_calls:
        calls = tuple(
            ScriptedToolCall(
                call.tool_call_id,
                call.tool_name,
                call.arguments,
                stage.scenario.tool(call.tool_name).needs_approval,
            )
            for call in reply.tool_calls
        )
        outcome = {"tool_calls": calls, "text": reply.text}
    elif reply.hands_over:
        outcome = {"continues": True, "text": reply.text}
    elif reply.failure is not None and reply.failure.is_final:
        outcome = {"turn_failure": reply.failure.message}
    return ScriptedReply(
        **outcome,
        usage=reply.usage,
        failures=scripted_failures(reply.failure),
        delay=3600 if reply.never_answers else 0,
    )


def scripted_failures(failure: ModelFailure | None) -> tuple[ScriptedFailure, ...]:
    if failure is None or failure.is_final:
        return ()
    return (
        ScriptedFailure(
            failure.message,
            FailureKind.MODEL_ERROR,
            attempts=failure.attempts,
            retry_after=failure.retry_after,
        ),
    )


def scripted_tool(tool: ScenarioTool) -> ScriptedTool:
    failures = () if tool.exception is None else (ScriptedFailure(tool.exception, attempts=99),)
    return ScriptedTool(output=tool.output, error=tool.error, failures=failures)
