"""Checks of model Steps: what they do, what the model is given, and how a turn goes on."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

from dex_agents.errors import ModelError, TurnFailedError
from dex_agents.runner import (
    AgentTurnOutcome,
    ToolCallsRequested,
    TurnCompleted,
    TurnContinues,
)
from dex_agents.values import MessageRole, ToolCallStatus
from dex_agents_testkit.conformance._bench import Bench, CheckTable
from dex_agents_testkit.conformance._played import PlayedSession, RequirementBrokenError, require
from dex_agents_testkit.conformance._scenario import (
    ModelFailure,
    ModelReply,
    ModelToolCall,
    ScenarioTool,
)

MODEL_CHECKS = CheckTable()

USER = "user-says-amber"
ANSWER = ModelReply(text="answer-birch")
END = ModelReply(text="end-zinnia")
FIND = ScenarioTool(name="find", output="found-cedar")
ASK = ModelReply(
    text="looking-dahlia",
    tool_calls=(ModelToolCall(tool_call_id="call-1", tool_name="find", key="key-elder"),),
)
ASK_AGAIN = ModelReply(
    tool_calls=(ModelToolCall(tool_call_id="call-2", tool_name="note", key="key-fern"),),
)
NOTE = ScenarioTool(name="note", output="noted-gorse")
_AWKWARD = 'two\nlines, "quotes" \\ and a tab\t, ümlaut, 漢字, 🌲, {"json": [1]}, </tag> ${key}'


@MODEL_CHECKS.proves("user_message.role")
async def _(bench: Bench) -> None:
    bench.play((ANSWER,)).say(USER)


@MODEL_CHECKS.proves("user_message.text")
async def _(bench: Bench) -> None:
    for said in (USER, f"  {_AWKWARD}  "):
        message = bench.play((ANSWER,)).say(said)
        bench.require(message.text == said, f"said {said!r}, readable text {message.text!r}")


@MODEL_CHECKS.proves("user_message.reaches_model")
async def _(bench: Bench) -> None:
    session = bench.play((ANSWER,))
    session.say(_AWKWARD)
    await session.attempt()
    bench.require(_AWKWARD in session.model_input, f"the model read {session.model_input!r}")


@MODEL_CHECKS.proves("model.outcome")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    await session.play(USER)


@MODEL_CHECKS.proves("model.one_call")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ASK_AGAIN, ANSWER), tools=(FIND, NOTE))
    await session.play(USER)


@MODEL_CHECKS.proves("model.no_tool_run")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ASK_AGAIN, ANSWER), tools=(FIND, NOTE))
    await session.play(USER)


@MODEL_CHECKS.proves("model.repeatable")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    session.say(USER)
    for _step in range(2):
        first = _view(await session.attempt())
        again = _view(await session.attempt(2))
        bench.require(first == again, f"attempt 1 gave {first}, attempt 2 gave {again}")
        outcome = await session.model_step()
        if isinstance(outcome, ToolCallsRequested):
            await session.run_tool(outcome.tool_calls[0].tool_call_id)


@MODEL_CHECKS.proves("model.cancel")
async def _(bench: Bench) -> None:
    session = bench.play((ModelReply(text="never", never_answers=True),))
    session.say(USER)
    step = asyncio.ensure_future(session.attempt())
    called = asyncio.ensure_future(session.witness.model_was_called.wait())
    try:
        await asyncio.wait({step, called}, return_when=asyncio.FIRST_COMPLETED)
        require(called.done(), "model.repeatable", "the Step ended before it called the model")
        step.cancel()
        await asyncio.wait({step}, timeout=20)
        bench.require(step.done(), "the Step still runs after it was cancelled")
        bench.require(step.cancelled(), f"the cancelled Step ended as {step!r:.300}")
    finally:
        step.cancel()
        called.cancel()
        await asyncio.gather(step, called, return_exceptions=True)


@MODEL_CHECKS.proves("history.reaches_model")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), (ModelReply(text="answer-hazel"),), (END,), tools=(FIND,))
    await session.play(USER)
    output = next(iter(session.records.values())).output or ""
    await session.play("user-says-iris")
    session.say("user-says-juniper")
    await session.attempt()
    first = [USER, ASK.text, ASK.tool_calls[0].key, output, ANSWER.text]
    pieces = [*first, "user-says-iris", "answer-hazel", "user-says-juniper"]
    places = [session.model_input.find(piece) for piece in pieces]
    bench.require(
        -1 not in places and places == sorted(places),
        f"the model should read {pieces} in this order; it read {session.model_input!r}",
    )


@MODEL_CHECKS.proves("history.no_repeats")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), (ASK_AGAIN, END), tools=(FIND, NOTE))
    await session.play(USER)
    session.say("user-says-iris")
    asked = await session.ask_for_tools()
    await session.run_tool(asked.tool_calls[0].tool_call_id)
    await session.attempt()
    output = session.records[asked.tool_calls[0].tool_call_id].output or ""
    for piece in (USER, "looking-dahlia", "answer-birch", "user-says-iris", output):
        count = session.model_input.count(piece)
        bench.require(count <= 1, f"the model read {piece!r} {count} times")


@MODEL_CHECKS.proves("results.succeeded")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    session.say(USER)
    asked = await session.ask_for_tools()
    record = await session.run_tool(asked.tool_calls[0].tool_call_id)
    await session.attempt()
    bench.require(
        (record.output or "") in session.model_input,
        f"the output {record.output!r} is not in {session.model_input!r}",
    )


@MODEL_CHECKS.proves("results.structured")
async def _(bench: Bench) -> None:
    tool = ScenarioTool(
        name="find", output="part-lark, part-wren", parts=("part-lark", "part-wren")
    )
    session = bench.play((ASK, ANSWER), tools=(tool,))
    session.say(USER)
    asked = await session.ask_for_tools()
    await session.run_tool(asked.tool_calls[0].tool_call_id)
    await session.attempt()
    pieces = session.model_input.split("\n")
    bench.require(
        all(part in pieces for part in tool.parts),
        f"the parts {tool.parts} are no pieces of their own in {pieces!r:.600}",
    )


@MODEL_CHECKS.proves("results.failed")
async def _(bench: Bench) -> None:
    await _settled(bench, ToolCallStatus.FAILED, "no such order: kelp")


@MODEL_CHECKS.proves("results.rejected")
async def _(bench: Bench) -> None:
    await _settled(bench, ToolCallStatus.REJECTED, "not before friday: larch")


@MODEL_CHECKS.proves("results.outcome_unknown")
async def _(bench: Bench) -> None:
    await _settled(bench, ToolCallStatus.OUTCOME_UNKNOWN, "the worker was lost: maple")


async def _settled(bench: Bench, status: ToolCallStatus, text: str) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    session.say(USER)
    asked = await session.ask_for_tools()
    session.settle(asked.tool_calls[0].tool_call_id, status, text)
    await session.attempt()
    bench.require(
        text in session.model_input,
        f"a call ended as {status} with {text!r}, and the model read {session.model_input!r}",
    )


@MODEL_CHECKS.proves("state.not_empty")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    session.say(USER)
    await session.ask_for_tools()


@MODEL_CHECKS.proves("state.elsewhere")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ASK_AGAIN, ANSWER), (ANSWER,), tools=(FIND, NOTE), is_moving=True)
    await session.play(USER)
    await session.play("user-says-iris")


@MODEL_CHECKS.proves("state.small")
async def _(bench: Bench) -> None:
    # Random text, so that no compression hides it.
    long = base64.b64encode(random.Random(7).randbytes(150_000)).decode()
    session = bench.play((ANSWER,), (ASK, END), tools=(FIND,))
    await session.play(long)
    session.say(USER)
    asked = await session.ask_for_tools()
    size = len(asked.framework_run_state)
    bench.require(size < 60_000, f"after 200,000 characters of history the run state has {size}")


@MODEL_CHECKS.proves("state.continues")
async def _(bench: Bench) -> None:
    handover = ModelReply(text="over-to-nettle", hands_over=True)
    session = bench.play((handover, ANSWER))
    session.say(USER)
    outcome = await session.model_step()
    bench.require(
        isinstance(outcome, TurnContinues), f"after a handoff came {type(outcome).__name__}"
    )
    outcome = await session.model_step()
    bench.require(
        isinstance(outcome, TurnCompleted), f"the Step after it returned {type(outcome).__name__}"
    )


@MODEL_CHECKS.proves("items.json")
async def _(bench: Bench) -> None:
    await _whole_turn(bench)


@MODEL_CHECKS.proves("items.complete")
async def _(bench: Bench) -> None:
    await _whole_turn(bench)


@MODEL_CHECKS.proves("items.no_repeats")
async def _(bench: Bench) -> None:
    await _whole_turn(bench)


@MODEL_CHECKS.proves("items.order")
async def _(bench: Bench) -> None:
    await _whole_turn(bench)


@MODEL_CHECKS.proves("items.after_user_message")
async def _(bench: Bench) -> None:
    await _whole_turn(bench)


@MODEL_CHECKS.proves("items.answer_text")
async def _(bench: Bench) -> None:
    messages = await _whole_turn(bench)
    bench.require(
        any(
            message.role is MessageRole.ASSISTANT and "answer-birch" in message.text
            for message in messages
        ),
        f"no message of the assistant has the answer: {[(m.role, m.text) for m in messages]}",
    )


async def _whole_turn(bench: Bench) -> Any:
    """Play a turn in which a call succeeds and one fails; the played session checks its items."""
    refuse = ScenarioTool(name="note", error="refused-oak")
    session = bench.play((ASK, ASK_AGAIN, ANSWER), tools=(FIND, refuse))
    return await session.play(USER)


@MODEL_CHECKS.proves("usage.this_call")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ASK_AGAIN, ANSWER), tools=(FIND, NOTE))
    session.say(USER)
    for reply in session.witness.scenario.turns[0]:
        outcome = await session.model_step()
        got, told = outcome.usage, reply.usage
        bench.require(
            (got.model_calls, got.input_tokens, got.output_tokens, got.total_tokens)
            == (told.model_calls, told.input_tokens, told.output_tokens, told.total_tokens),
            f"the provider reported {told}, the Step reported {got}",
        )
        if isinstance(outcome, ToolCallsRequested):
            await session.run_tool(outcome.tool_calls[0].tool_call_id)


@MODEL_CHECKS.proves("events.text")
async def _(bench: Bench) -> None:
    session = bench.play((ASK, ANSWER), tools=(FIND,))
    session.say(USER)
    asked = await session.ask_for_tools()
    bench.require(session.streamed == ASK.text, f"streamed {session.streamed!r} for {ASK.text!r}")
    await session.run_tool(asked.tool_calls[0].tool_call_id)
    await session.model_step()
    bench.require(
        session.streamed == ANSWER.text, f"streamed {session.streamed!r} for {ANSWER.text!r}"
    )


# --- failures of the model ----------------------------------------------------------------------

_OVERLOADED = ModelFailure(message="overloaded")


@MODEL_CHECKS.proves("failures.raised")
async def _(bench: Bench) -> None:
    await _failure(_failing(bench, _OVERLOADED))


@MODEL_CHECKS.proves("failures.repeatable")
async def _(bench: Bench) -> None:
    await _passing_failure(_failing(bench, _OVERLOADED))


@MODEL_CHECKS.proves("failures.final")
async def _(bench: Bench) -> None:
    error = await _failure(_failing(bench, ModelFailure(message="refused", is_final=True)))
    bench.require(isinstance(error, TurnFailedError), f"a refused request raised {error!r}")


@MODEL_CHECKS.proves("failures.retry_after")
async def _(bench: Bench) -> None:
    error = await _passing_failure(_failing(bench, ModelFailure(message="slow", retry_after=7)))
    wait = error.retry_after if isinstance(error, ModelError) else None
    bench.require(wait == 7, f"the provider asks for 7 seconds; {error!r} asks for {wait}")


@MODEL_CHECKS.proves("failures.next_attempt")
async def _(bench: Bench) -> None:
    session = _failing(bench, _OVERLOADED)
    await _passing_failure(session)
    try:
        outcome = await session.attempt(2)
    except RequirementBrokenError:
        raise
    except Exception as error:
        bench.require(False, f"the provider is back, but attempt 2 raised {error!r}")
    else:
        bench.require(
            isinstance(outcome, TurnCompleted), f"attempt 2 returned {type(outcome).__name__}"
        )


def _failing(bench: Bench, failure: ModelFailure) -> PlayedSession:
    session = bench.play((ModelReply(text="answer-birch", failure=failure),))
    session.say(USER)
    return session


async def _failure(session: PlayedSession) -> Exception:
    try:
        outcome = await session.attempt()
    except RequirementBrokenError:
        raise
    except Exception as error:
        return error
    raise RequirementBrokenError(
        "failures.raised", f"the model failed, and the Step returned {type(outcome).__name__}"
    )


async def _passing_failure(session: PlayedSession) -> Exception:
    error = await _failure(session)
    require(
        not isinstance(error, TurnFailedError),
        "failures.repeatable",
        f"an overloaded provider ended the turn: {error!r}",
    )
    return error


def _view(outcome: AgentTurnOutcome) -> tuple[object, ...]:
    """Return what two attempts must agree in. Items and states may hold times and random ids."""
    match outcome:
        case TurnCompleted():
            shown: object = [(message.role, message.text) for message in outcome.new_messages]
        case ToolCallsRequested():
            shown = [
                (
                    call.tool_call_id,
                    call.tool_name,
                    call.arguments,
                    call.policy,
                    call.is_approval_required,
                )
                for call in outcome.tool_calls
            ]
        case TurnContinues():
            shown = None
    return (type(outcome).__name__, shown, outcome.usage)
