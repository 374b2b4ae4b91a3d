"""A runner that plays a script instead of calling a model.

It keeps the contract of `AgentFrameworkRunner` to the letter: nothing is kept between calls, and
what comes next follows from the turn context alone. A repeated model Step therefore gets the same
reply, and a new worker process goes on where the old one was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from dex_agents.errors import ModelError, ToolExecutionError, TurnFailedError
from dex_agents.runner import (
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    ToolCallsRequested,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
    describe_tool_call_outcome,
)
from dex_agents.testing import FileGate, InvocationLog
from dex_agents.values import AgentMessage, MessageRole
from dex_agents_testkit._script_fields import ScriptError
from dex_agents_testkit.runner_script import (
    MODEL_CALL,
    FailureKind,
    RunnerScript,
    ScriptedFailure,
    ScriptedReply,
    ScriptedTool,
    ScriptedTurn,
    load_runner_script,
    parse_turn_message,
)

Item = dict[str, Any]


class ScriptMismatchError(TurnFailedError):
    """The script does not fit what the session asks; the turn fails at once with this text."""


class ScriptedCallError(Exception):
    """A failure the script asked for."""


@dataclass(frozen=True, slots=True)
class _Progress:
    """The run state: which reply comes next and what the turn has produced so far."""

    next_reply: int = 0
    items: tuple[Item, ...] = ()
    pending: tuple[str, ...] = field(default=())

    def dump(self) -> str:
        state = {"next": self.next_reply, "items": self.items, "pending": self.pending}
        return json.dumps(state, separators=(",", ":"))

    @classmethod
    def load(cls, text: str | None) -> _Progress:
        if text is None:
            return cls()
        state = json.loads(text)
        return cls(state["next"], tuple(state["items"]), tuple(state["pending"]))


class ScriptedRunner:
    """Plays a script.

    Args:
        script: The script, or the path of its JSON file.
        log: Records every call: model calls under the name `run_model_step`, tool calls under the
            tool's name. The record of a tool call is its effect: it is written at the moment the
            tool would act.
        state_dir: Folder of the gates that the script names.

    Raises:
        ScriptError: The script cannot be used, or names gates and there is no `state_dir`.
    """

    def __init__(
        self,
        script: RunnerScript | str | Path,
        *,
        log: InvocationLog | None = None,
        state_dir: str | Path | None = None,
    ) -> None:
        self.script = script if isinstance(script, RunnerScript) else load_runner_script(script)
        self._log = log
        self._state_dir = state_dir
        gates = _gate_names(self.script)
        if gates and state_dir is None:
            raise ScriptError("script", f"gate {gates[0]!r} needs a state_dir")

    def tool_policies(self) -> dict[str, ToolPolicy]:
        """Return the policies that the script gives its tools."""
        return {
            name: ToolPolicy(tool.effect, tool.requires_approval)
            for name, tool in self.script.tools.items()
        }

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the user message as an item of the script's own form."""
        return _message({"type": "message", "role": "user", "text": text}, MessageRole.USER, text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Play the next reply of the turn.

        Raises:
            ScriptMismatchError: The script has no such reply, or another user message was expected.
            ModelError: The script lets this attempt fail.
            ScriptedCallError: The script lets this attempt fail.
        """
        progress = _Progress.load(turn.framework_run_state)
        self._record_model_call(turn, progress)
        reply = self._reply(turn, progress.next_reply)
        items = (*progress.items, *_tool_results(turn, progress.pending))
        for piece in reply.reasoning:
            turn.events.write_reasoning_delta(piece)
        for piece in _deltas(reply):
            turn.events.write_text_delta(piece)
        await self._pass_gate(reply.gate)
        await asyncio.sleep(reply.delay)
        _fail_attempt(reply.failures, turn.attempt)
        return _outcome(turn, reply, progress, items)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Do what the script says this tool does.

        Raises:
            ToolExecutionError: The script gives the tool an error for the model.
            ScriptedCallError: The script lets this attempt fail.
        """
        name = call.tool_call.tool_name
        tool = self.script.tools.get(name)
        if tool is None:
            raise ToolExecutionError(f"the script has no tool {name!r}")
        await self._pass_gate(tool.gate_before)
        _fail_attempt(tool.failures, call.attempt)
        arguments = _arguments(call.tool_call.arguments)
        self._record_tool_call(call, arguments)
        await self._pass_gate(tool.gate_after)
        await asyncio.sleep(tool.delay)
        if tool.error is not None:
            raise ToolExecutionError(tool.error)
        return ToolExecutionResult(_output(name, tool, arguments), usage=tool.usage)

    def _reply(self, turn: AgentTurnContext, position: int) -> ScriptedReply:
        scripted = self._turn(turn)
        said = _user_text(turn.messages)
        if scripted.user is not None and scripted.user != said:
            raise ScriptMismatchError(
                f"{turn.turn_id} of the script is for {scripted.user!r}, but the user said {said!r}"
            )
        if position >= len(scripted.replies):
            raise ScriptMismatchError(
                f"{turn.turn_id} of the script has {len(scripted.replies)} replies, "
                f"but reply {position + 1} is asked for"
            )
        return scripted.replies[position]

    def _turn(self, turn: AgentTurnContext) -> ScriptedTurn:
        if self.script.turn_in_message:
            try:
                return parse_turn_message(_user_text(turn.messages))
            except ScriptError as error:
                raise ScriptMismatchError(str(error)) from error
        number = int(turn.turn_id.removeprefix("turn-"))
        if number > len(self.script.turns):
            raise ScriptMismatchError(
                f"the script has {len(self.script.turns)} turns, but {turn.turn_id} is asked for"
            )
        return self.script.turns[number - 1]

    async def _pass_gate(self, name: str | None) -> None:
        if name is None or self._state_dir is None:
            return
        gate = FileGate(self._state_dir, name)
        gate.mark_reached()
        await gate.wait_for_release()

    def _record_model_call(self, turn: AgentTurnContext, progress: _Progress) -> None:
        if self._log is None:
            return
        self._log.record(
            MODEL_CALL,
            flow_id=turn.flow_id,
            turn_id=turn.turn_id,
            attempt=turn.attempt,
            reply=progress.next_reply + 1,
            messages=[[message.sequence, message.role, message.text] for message in turn.messages],
            tool_calls={key: record.status for key, record in turn.tool_calls.items()},
        )

    def _record_tool_call(self, call: DeferredToolExecution, arguments: Item) -> None:
        if self._log is None:
            return
        self._log.record(
            call.tool_call.tool_name,
            flow_id=call.flow_id,
            turn_id=call.tool_call.turn_id,
            tool_call_id=call.tool_call.tool_call_id,
            idempotency_key=call.idempotency_key,
            attempt=call.attempt,
            arguments=arguments,
        )


def _outcome(
    turn: AgentTurnContext, reply: ScriptedReply, progress: _Progress, items: tuple[Item, ...]
) -> AgentTurnOutcome:
    said = reply.message if reply.message is not None else reply.text
    if said:
        items = (*items, {"type": "message", "role": "assistant", "text": said})
    advanced = _Progress(progress.next_reply + 1, items)
    if reply.turn_failure is not None:
        raise TurnFailedError(reply.turn_failure, reply.turn_failure_type)
    if reply.message is not None:
        return TurnCompleted(tuple(_stored(item) for item in items), reply.usage)
    if reply.continues:
        return TurnContinues(advanced.dump(), reply.usage)
    calls = tuple(
        DeferredToolCall(
            call.tool_call_id,
            call.tool_name,
            call.arguments,
            turn.resolve_tool_policy(call.tool_name),
            call.requires_approval,
        )
        for call in reply.tool_calls
    )
    asked = tuple(
        {
            "type": "tool_call",
            "id": call.tool_call_id,
            "name": call.tool_name,
            "arguments": call.arguments,
        }
        for call in calls
    )
    waiting = replace(
        advanced, items=items + asked, pending=tuple(call.tool_call_id for call in calls)
    )
    return ToolCallsRequested(waiting.dump(), calls, reply.usage)


def _tool_results(turn: AgentTurnContext, pending: Sequence[str]) -> list[Item]:
    results: list[Item] = []
    for tool_call_id in pending:
        record = turn.recorded_tool_call(tool_call_id)
        if record is None:
            raise ScriptMismatchError(
                f"the session resumed {turn.turn_id} without a record of call {tool_call_id!r}"
            )
        output = describe_tool_call_outcome(record)
        results.append({"type": "tool_result", "id": tool_call_id, "output": output})
    return results


def _stored(item: Item) -> FrameworkMessage:
    match item["type"]:
        case "tool_result":
            return _message(item, MessageRole.TOOL, item["output"])
        case "tool_call":
            return _message(item, MessageRole.ASSISTANT, "")
        case _:
            return _message(item, MessageRole.ASSISTANT, item["text"])


def _message(item: Item, role: MessageRole, text: str) -> FrameworkMessage:
    return FrameworkMessage(role, json.dumps(item), text)


def _user_text(messages: Sequence[AgentMessage]) -> str:
    for message in reversed(messages):
        if message.role is MessageRole.USER:
            return message.text
    raise ScriptMismatchError("the session has no user message")


def _deltas(reply: ScriptedReply) -> tuple[str, ...]:
    if reply.deltas is not None:
        return reply.deltas
    said = reply.message if reply.message is not None else reply.text
    return (said,) if said else ()


def _fail_attempt(failures: Sequence[ScriptedFailure], attempt: int) -> None:
    for failure in failures:
        if attempt > failure.attempts:
            attempt -= failure.attempts
            continue
        match failure.kind:
            case FailureKind.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case FailureKind.MODEL_ERROR:
                raise ModelError(
                    failure.message, failure.error_type, retry_after=failure.retry_after
                )
            case FailureKind.EXCEPTION:
                raise ScriptedCallError(failure.message)


def _arguments(text: str) -> Item:
    try:
        value = json.loads(text)
    except ValueError:
        raise ToolExecutionError(f"the arguments are not JSON: {text!r}") from None
    if not isinstance(value, dict):
        raise ToolExecutionError(f"the arguments are not an object: {text!r}")
    return cast("Item", value)


def _output(name: str, tool: ScriptedTool, arguments: Item) -> str:
    try:
        return string.Template(tool.output).substitute(arguments)
    except (KeyError, ValueError) as error:
        raise ToolExecutionError(
            f"the scripted output of {name!r} does not fit its arguments: {error!r}"
        ) from None


def _gate_names(script: RunnerScript) -> list[str]:
    in_tools = [
        gate for tool in script.tools.values() for gate in (tool.gate_before, tool.gate_after)
    ]
    in_replies = [reply.gate for turn in script.turns for reply in turn.replies]
    return [gate for gate in (*in_tools, *in_replies) if gate is not None]
