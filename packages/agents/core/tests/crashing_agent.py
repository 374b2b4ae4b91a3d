"""An agent that stops or dies at named places, and the worker that serves it.

Every place is one call of `WatchedRunner.pass_place`. A session whose id is the name of a place
waits there for its gate. `CRASHING_AT=place:count` makes the worker kill itself with SIGKILL at the
`count`-th arrival at `place`, whatever the session. So a kill is a real one, with everything that
was running in flight, and always falls at the same place.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from dex import Codec, Value

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    AgentToolCall,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    StepLimits,
    ToolExecutionResult,
    agent_codecs,
)
from dex_agents.testing import FileGate, InvocationLog, run_agent_worker
from dex_agents_testkit import ScriptedRunner, parse_runner_script

FLOW_TYPE: Final = "Crashing"
STATE_VARIABLE: Final = "CRASHING_STATE_DIR"
AT_VARIABLE: Final = "CRASHING_AT"
ATTEMPTS_VARIABLE: Final = "CRASHING_ATTEMPTS"
HEARTBEAT_VARIABLE: Final = "CRASHING_HEARTBEAT_TIMEOUT"
BLOCK_VARIABLE: Final = "CRASHING_BLOCK_SECONDS"
SLOTS_VARIABLE: Final = "CRASHING_SLOTS"
DECODE_VARIABLE: Final = "CRASHING_ON_DECODE"

MODEL_BEFORE: Final = "model.before"
MODEL_AFTER: Final = "model.after"
TOOL_BEFORE: Final = "tool.before"
TOOL_INSIDE: Final = "tool.inside"
TOOL_AFTER: Final = "tool.after"
RESUMED_BEFORE: Final = "resumed.before"
RESUMED_AFTER: Final = "resumed.after"
PLACES: Final = (
    MODEL_BEFORE,
    MODEL_AFTER,
    TOOL_BEFORE,
    TOOL_INSIDE,
    TOOL_AFTER,
    RESUMED_BEFORE,
    RESUMED_AFTER,
)

#: Tool of each effect, in the order in which the model asks for them.
EFFECTS: Final = {
    "look": "read",
    "upsert": "idempotent_write",
    "pay": "non_idempotent_write",
    "ring": "unclassified",
}
SINGLE_ATTEMPT: Final = ("pay", "ring")
#: A tool that blocks the event loop after its effect, and one that blocks a thread.
FREEZING: Final = "freeze"
THREADED: Final = "thread"
UNKNOWN: Final = "It is not known whether"


def script_of(*calls: str, turns: int = 2, delay: float = 0.0) -> dict[str, Any]:
    """Return a script whose turns each ask for these tools at once and then answer.

    The call ids are `c1`, `c2`, ... and come again in every turn.

    Args:
        calls: Names of tools.
        turns: How many turns a session can have.
        delay: Seconds that each model and tool call takes.
    """
    asked = [
        {"id": f"c{number}", "name": name, "arguments": {"n": str(number)}}
        for number, name in enumerate(calls, 1)
    ]
    replies: list[Any] = [{"tool_calls": asked}] if asked else []
    return {
        "tools": {
            name: {
                "effect": effect,
                "output": f"{name} $n",
                "requires_approval": False,
                "delay": delay,
            }
            for name, effect in EFFECTS.items()
        },
        "turns": [
            {"replies": [*replies, {"message": f"end {turn + 1}", "delay": delay}]}
            for turn in range(turns)
        ],
    }


class WatchedRunner(ScriptedRunner):
    """A scripted runner that passes the places and records every attempt, effect and record.

    Names in the log: `attempt` as soon as a tool call begins, `began` inside it, the tool's own
    name for its effect, and `run_model_step` for a model call, with `records` that it saw.
    """

    def __init__(self, script: Mapping[str, Any], state_dir: Path) -> None:
        self._watched = calls_log(state_dir)
        super().__init__(parse_runner_script(script), log=self._watched, state_dir=state_dir)
        self._folder = state_dir
        self._block_seconds = float(os.environ.get(BLOCK_VARIABLE, "0"))
        place, _, count = os.environ.get(AT_VARIABLE, "").partition(":")
        self._deadly_place, self._arrivals_left = place, int(count or 0)

    async def pass_place(self, place: str, session_id: str) -> None:
        """Die or wait here if that was asked for."""
        if place == self._deadly_place:
            self._arrivals_left -= 1
            if self._arrivals_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if place == session_id:
            gate = FileGate(self._folder, place)
            gate.mark_reached()
            await gate.wait_for_release()

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        resumed = turn.is_resuming
        self._watched.record(
            "records",
            flow_id=turn.flow_id,
            turn_id=turn.turn_id,
            records={
                call_id: [record.tool_name, record.status, record.output, record.error]
                for call_id, record in turn.tool_calls.items()
            },
        )
        await self.pass_place(RESUMED_BEFORE if resumed else MODEL_BEFORE, turn.flow_id)
        outcome = await super().run_model_step(turn)
        await self.pass_place(RESUMED_AFTER if resumed else MODEL_AFTER, turn.flow_id)
        return outcome

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self._record_attempt("attempt", call)
        await self.pass_place(TOOL_BEFORE, call.flow_id)
        self._record_attempt("began", call)
        await self.pass_place(TOOL_INSIDE, call.flow_id)
        result = await super().execute_deferred_tool_call(call)
        if call.tool_call.tool_name == FREEZING:
            time.sleep(self._block_seconds)  # noqa: ASYNC251 - a tool that blocks is what is tested
        if call.tool_call.tool_name == THREADED:
            await asyncio.to_thread(time.sleep, self._block_seconds)
        await self.pass_place(TOOL_AFTER, call.flow_id)
        return result

    def _record_attempt(self, name: str, call: DeferredToolExecution) -> None:
        self._watched.record(
            name,
            flow_id=call.flow_id,
            turn_id=call.tool_call.turn_id,
            tool=call.tool_call.tool_name,
            tool_call_id=call.tool_call.tool_call_id,
            idempotency_key=call.idempotency_key,
            attempt=call.attempt,
        )


def calls_log(state_dir: Path) -> InvocationLog:
    """Return the log of everything that the workers have done."""
    return InvocationLog(state_dir / "calls.jsonl")


def build_flow(script: Mapping[str, Any], state_dir: Path) -> AgentSessionFlow:
    """Build the Flow, as a test and its workers both do."""
    runner = WatchedRunner(script, state_dir)
    limits = StepLimits(
        max_attempts=int(os.environ.get(ATTEMPTS_VARIABLE, "3")),
        heartbeat_timeout=timedelta(seconds=int(os.environ.get(HEARTBEAT_VARIABLE, "120"))),
    )
    return AgentSessionFlow(
        runner,
        flow_type=FLOW_TYPE,
        options=AgentSessionOptions(
            tool_policies=runner.tool_policies(),
            interrupt_deadline=timedelta(days=7),
            model_limits=limits,
            tool_limits=limits,
        ),
    )


class DeadlyCodec:
    """Kills the process when a record of a tool call is read: the first thing a tool Step does."""

    def __init__(self) -> None:
        self._inner: Codec[AgentToolCall] = agent_codecs()[AgentToolCall]
        self.type_name = self._inner.type_name
        self.wire_kind = self._inner.wire_kind

    def encode(self, value: AgentToolCall) -> Value:
        return self._inner.encode(value)

    def decode(self, value: Value) -> AgentToolCall:
        os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.decode(value)


def serve() -> None:
    """Serve the Flow of the test that started this process."""
    folder = Path(os.environ[STATE_VARIABLE])
    script = json.loads((folder / "script.json").read_text(encoding="utf-8"))
    run_agent_worker(
        [build_flow(script, folder)],
        max_concurrent_tasks=int(os.environ.get(SLOTS_VARIABLE, "32")),
        codecs={AgentToolCall: DeadlyCodec()} if DECODE_VARIABLE in os.environ else None,
    )
