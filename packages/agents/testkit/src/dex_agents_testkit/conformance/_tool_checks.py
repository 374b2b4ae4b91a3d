"""Checks of the tool calls a model asks for, and of tool Steps."""

from __future__ import annotations

import asyncio
import json

from dex_agents.errors import ToolExecutionError
from dex_agents.runner import ToolPolicy, TurnCompleted
from dex_agents.values import ToolCallStatus, ToolEffect
from dex_agents_testkit.conformance._bench import Bench, CheckTable
from dex_agents_testkit.conformance._model_checks import ANSWER, ASK, END, FIND, NOTE, USER
from dex_agents_testkit.conformance._played import PlayedSession, RequirementBrokenError, require
from dex_agents_testkit.conformance._requirements import Ability
from dex_agents_testkit.conformance._scenario import ModelReply, ModelToolCall, ScenarioTool

TOOL_CHECKS = CheckTable()


def _asks(*calls: tuple[str, str, str]) -> ModelReply:
    return ModelReply(
        tool_calls=tuple(
            ModelToolCall(tool_call_id=call_id, tool_name=name, key=key)
            for call_id, name, key in calls
        )
    )


@TOOL_CHECKS.proves("tools.arguments")
async def _(bench: Bench) -> None:
    for key in ("key-elder", 'quotes " and \\ and ü and\nlines'):
        session = bench.play((_asks(("call-1", "find", key)), ANSWER), tools=(FIND,))
        session.say(USER)
        await session.ask_for_tools()


@TOOL_CHECKS.proves("tools.order")
async def _(bench: Bench) -> None:
    reply = _asks(
        ("call-b", "note", "key-1"), ("call-c", "find", "key-2"), ("call-a", "note", "key-3")
    )
    session = bench.play((reply, ANSWER), tools=(FIND, NOTE))
    session.say(USER)
    await session.ask_for_tools()


@TOOL_CHECKS.proves("tools.ids")
async def _(bench: Bench) -> None:
    asks = [_asks((f"call-{n}", "find", f"key-{n}")) for n in range(1, 4)]
    session = bench.play((*asks, ANSWER), tools=(ScenarioTool(name="find", output="got-$key"),))
    session.say(USER)
    for _reply in asks:
        asked = await session.ask_for_tools()
        await session.run_tool(asked.tool_calls[0].tool_call_id)


@TOOL_CHECKS.proves("tools.ids.foreign")
async def _(bench: Bench) -> None:
    session = bench.play((_asks(("call/1", "find", "key-elder")), ANSWER), tools=(FIND,))
    try:
        session.say(USER)
        asked = await session.ask_for_tools()
        record = await session.run_tool(asked.tool_calls[0].tool_call_id)
        outcome = await session.model_step()
    except RequirementBrokenError as error:
        # Of `tools.ids`, this is the part that only models with free ids can show.
        bench.require(error.requirement_id != "tools.ids", f"the model's id is call/1: {error}")
        raise
    bench.require(isinstance(outcome, TurnCompleted), f"the turn went on with {outcome!r:.200}")
    if bench.can(Ability.MODEL_INPUT):
        require(
            (record.output or "") in session.model_input,
            "results.succeeded",
            f"the output {record.output!r} is not in {session.model_input!r}",
        )


@TOOL_CHECKS.proves("tools.ids.next_turn")
async def _(bench: Bench) -> None:
    session = bench.play(
        (_asks(("call-1", "find", "key-elder")), ANSWER),
        (_asks(("call-1", "note", "key-fern")), END),
        tools=(FIND, NOTE),
    )
    await session.play(USER)
    earlier = next(iter(session.records.values())).output or ""
    session.say("user-says-iris")
    await session.ask_for_tools()
    await _run_all(session)
    await session.attempt()
    output = next(iter(session.records.values())).output or ""
    if output in session.model_input:
        return
    told = f"this turn's call returned {output!r}, and the model read {session.model_input!r}"
    bench.require(session.model_input.count(earlier) <= 1, told)
    raise RequirementBrokenError("results.succeeded", told)


async def _run_all(session: PlayedSession) -> None:
    for tool_call_id in list(session.records):
        await session.run_tool(tool_call_id)


@TOOL_CHECKS.proves("tools.policy")
async def _(bench: Bench) -> None:
    for policy in (
        ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
        ToolPolicy(ToolEffect.READ, requires_approval=True),
    ):
        session = bench.play((ASK, ANSWER), tools=(FIND,), policies={"find": policy})
        session.say(USER)
        got = (await session.ask_for_tools()).tool_calls[0].policy
        bench.require(got == policy, f"the application gave {policy}; the call has {got}")
    session = bench.play((ASK, ANSWER), tools=(FIND,), default_effect=ToolEffect.UNCLASSIFIED)
    session.say(USER)
    got = (await session.ask_for_tools()).tool_calls[0].policy
    bench.require(
        got == ToolPolicy(ToolEffect.UNCLASSIFIED), f"the default is unclassified; found {got}"
    )


@TOOL_CHECKS.proves("tools.effect_hint")
async def _(bench: Bench) -> None:
    for hint in (ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE):
        session = bench.play(
            (ASK, ANSWER),
            tools=(ScenarioTool(name="find", effect_hint=hint),),
            default_effect=ToolEffect.UNCLASSIFIED,
        )
        session.say(USER)
        got = (await session.ask_for_tools()).tool_calls[0].policy.effect
        bench.require(got is hint, f"the tool says {hint}; the call has {got}")


@TOOL_CHECKS.proves("tools.framework_approval")
async def _(bench: Bench) -> None:
    for needs in (True, False):
        session = bench.play(
            (ASK, ANSWER), tools=(ScenarioTool(name="find", needs_approval=needs),)
        )
        session.say(USER)
        call = (await session.ask_for_tools()).tool_calls[0]
        bench.require(
            call.is_approval_required is needs,
            f"needs_approval of the tool is {needs}; of the call {call.is_approval_required}",
        )


@TOOL_CHECKS.proves("tool_step.runs_once")
async def _(bench: Bench) -> None:
    session = await _asked(bench, FIND)
    await _run_all(session)
    runs = [(run.tool_name, run.key) for run in session.witness.tool_runs]
    bench.require(runs == [("find", "key-elder")], f"one call of find ran {runs}")


@TOOL_CHECKS.proves("tool_step.no_model_call")
async def _(bench: Bench) -> None:
    await _run_all(await _asked(bench, FIND))


@TOOL_CHECKS.proves("tool_step.output")
async def _(bench: Bench) -> None:
    for text in ("found-cedar", ' {"order": 7}\n', "ümlaut 漢字 🌲", "x" * 20_000):
        session = await _asked(bench, ScenarioTool(name="find", output=text))
        await _run_all(session)
        record = next(iter(session.records.values()))
        bench.require(
            record.output == text, f"the tool returned {text!r:.200}, stored {record.output!r:.200}"
        )


@TOOL_CHECKS.proves("tool_step.error_for_model")
async def _(bench: Bench) -> None:
    session = await _asked(bench, ScenarioTool(name="find", error="no such order"))
    try:
        await _run_all(session)
    except RequirementBrokenError:
        raise
    except Exception as error:
        bench.require(False, f"the ToolExecutionError of a tool came out as {error!r}")
    record = next(iter(session.records.values()))
    bench.require(
        record.status is ToolCallStatus.FAILED and record.error == "no such order",
        f"the call ended as {record.status}: {record.error or record.output!r}",
    )


@TOOL_CHECKS.proves("tool_step.other_error")
async def _(bench: Bench) -> None:
    session = await _asked(bench, ScenarioTool(name="find", exception="the disk is full"))
    try:
        await _run_all(session)
    except RequirementBrokenError:
        raise
    except Exception as error:
        bench.require(not isinstance(error, ToolExecutionError), f"it came out as {error!r}")
        return
    record = next(iter(session.records.values()))
    bench.require(
        False,
        f"a tool raised RuntimeError, but the call ended as {record.status} "
        f"({record.error or record.output!r})",
    )


@TOOL_CHECKS.proves("tool_step.concurrent")
async def _(bench: Bench) -> None:
    tool = ScenarioTool(name="find", output="got-$key")
    keys = [f"key-{n}" for n in range(5)]
    replies = _asks(*((f"call-{n}", "find", key) for n, key in enumerate(keys)))
    session = bench.play((replies, ANSWER), tools=(tool,))
    session.say(USER)
    asked = await session.ask_for_tools()
    calls = {call.tool_call_id: json.loads(call.arguments)["key"] for call in asked.tool_calls}
    done = await asyncio.gather(*(session.run_tool(call_id) for call_id in calls))
    for record in done:
        wanted = f"got-{calls[record.tool_call_id]}"
        bench.require(
            record.output == wanted, f"{record.tool_call_id} got {record.output!r}, not {wanted!r}"
        )


@TOOL_CHECKS.proves("tool_step.idempotency_key")
async def _(bench: Bench) -> None:
    session = await _asked(bench, FIND)
    await _run_all(session)
    seen = [run.idempotency_key for run in session.witness.tool_runs]
    wanted = f"conformance/turn-1/{next(iter(session.records))}"
    bench.require(seen == [wanted], f"the tool read {seen}, the key is {wanted!r}")


async def _asked(bench: Bench, tool: ScenarioTool) -> PlayedSession:
    """Return a session whose model has asked for one call of a tool."""
    session = bench.play((ASK, ANSWER), tools=(tool,))
    session.say(USER)
    await session.ask_for_tools()
    return session
