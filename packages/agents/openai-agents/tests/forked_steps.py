"""Steps in processes of their own, which a test kills for good while they work.

A child is a fork of the test process, so it starts in milliseconds with everything imported. It
marks the place where it is to die and waits there; the parent then sends SIGKILL and runs the Step
again in a new child, as the session does. Parent and child share nothing but what a Step returns.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NoReturn

from dex_agents import (
    AgentEventWriter,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    ModelError,
    ToolExecutionError,
    ToolExecutionResult,
    TurnFailedError,
)
from dex_agents_openai_agents import OpenAIAgentsRunner

_SECONDS = 60.0
_MARK, _RESULT, _ERROR = b"M", b"R", b"E"

_place_to_die: str | None = None
_pipe: int | None = None


def reach(place: str) -> None:
    """Called by models and tools: if this child is to die here, it waits for it."""
    if _place_to_die == place and _pipe is not None:
        os.write(_pipe, _MARK)
        time.sleep(_SECONDS)


def reach_inside_tool() -> None:
    """Called within a nested run: if this child is to die in its tool, it waits for it here."""
    if _place_to_die is not None and _place_to_die.startswith("tool "):
        reach(_place_to_die)


class OtherError(Exception):
    """An error of the application's own, as it came over from a child."""


class ForkedRunner:
    """A runner whose every Step runs in a child.

    Args:
        build: Builds the real runner, in each child anew.
        kills: Places where a child dies once; emptied as they are used.
    """

    def __init__(self, build: Callable[[], OpenAIAgentsRunner], kills: set[str]) -> None:
        self._build = build
        self._kills = kills
        self.killed: list[str] = []

    def build_user_message(self, text: str) -> FrameworkMessage:
        return self._build().build_user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        async def step(attempt: int) -> AgentTurnOutcome:
            mine = replace(turn, attempt=attempt, events=_silent_writer(turn.turn_id))
            return await self._build().run_model_step(mine)

        return self._until_it_survives("model ", step)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        async def step(attempt: int) -> ToolExecutionResult:
            mine = replace(
                call,
                attempt=call.attempt + attempt - 1,
                events=_silent_writer(call.tool_call.turn_id),
            )
            return await self._build().execute_deferred_tool_call(mine)

        return self._until_it_survives(f"tool {call.tool_call.tool_call_id}", step)

    def _until_it_survives(
        self, prefix: str, step: Callable[[int], Coroutine[Any, Any, Any]]
    ) -> Any:
        attempt = 0
        while True:
            attempt += 1
            place = next((kill for kill in self._kills if kill.startswith(prefix)), None)
            kind, value = _run_in_child(lambda: step(attempt), place)  # noqa: B023 - used at once
            if kind == _MARK and place is not None:
                self._kills.discard(place)
                self.killed.append(place)
                continue
            if kind == _ERROR:
                raise value
            return value


def _silent_writer(turn_id: str) -> AgentEventWriter:
    return AgentEventWriter(
        lambda _event: None, turn_id=turn_id, step_execution_id="step", attempt=1
    )


def _run_in_child(step: Callable[[], Coroutine[Any, Any, Any]], place: str | None) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(step, place, writing)
    os.close(writing)
    try:
        kind = _read(reading, 1)
        if kind == _MARK:
            os.kill(child, signal.SIGKILL)
            return kind, None
        return kind, pickle.loads(_read_all(reading))
    finally:
        os.close(reading)
        os.waitpid(child, 0)


def _be_child(
    step: Callable[[], Coroutine[Any, Any, Any]], place: str | None, writing: int
) -> NoReturn:
    global _place_to_die, _pipe
    _place_to_die, _pipe = place, writing
    try:
        # The parent's loop is a copy here; this child has one of its own.
        asyncio._set_running_loop(None)
        try:
            message = _RESULT + pickle.dumps(asyncio.run(step()))
        except Exception as error:
            message = _ERROR + pickle.dumps(_portable(error))
        view = memoryview(message)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os._exit(0)


def _portable(error: Exception) -> Exception:
    match error:
        case TurnFailedError():
            return TurnFailedError(error.message, error.error_type)
        case ModelError():
            return ModelError(error.message, error.error_type)
        case ToolExecutionError():
            return ToolExecutionError(error.message, framework_payload=error.framework_payload)
        case _:
            return OtherError(f"{type(error).__name__}: {error}")


def _read(descriptor: int, size: int) -> bytes:
    ready, _, _ = select.select([descriptor], [], [], _SECONDS)
    assert ready, "a child neither ended nor came to its place"
    return os.read(descriptor, size)


def _read_all(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while part := _read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)
