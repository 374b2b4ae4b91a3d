"""Tools of every kind but functions, and calls of them, run both as a session and plainly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import Agent, ApplyPatchTool, CustomTool, Runner, ShellTool
from agents.editor import ApplyPatchOperation
from native_calls import custom_call, patch_call, shell_call, whole
from stepped_session import as_text, says, script, session_of

from dex_agents_openai_agents import get_current_deferred_tool_execution

Reply = Callable[[str], Any]
USER: list[Any] = [{"role": "user", "content": "go"}]


def echo(text: str) -> Any:
    return f"did {text}"


def fail(text: str) -> Any:
    raise ValueError(f"no {text}")


@dataclass
class Kit:
    """The three tools, each answering with `reply`, and what they were given.

    Attributes:
        reply: Called with the words of the call.
        options: Further arguments of every tool.
        given: What bodies got.
        keys: Idempotency keys that bodies saw.
    """

    reply: Reply = echo
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    given: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])

    def _run(self, text: str) -> Any:
        self.given.append(text)
        execution = get_current_deferred_tool_execution()
        if execution is not None:
            self.keys.append(execution.idempotency_key)
        return self.reply(text)

    def tools(self) -> list[Any]:
        async def invoke(_context: Any, text: str) -> Any:
            return self._run(text)

        async def execute(request: Any) -> Any:
            return self._run(" ".join(request.data.action.commands))

        kit = self

        class Editor:
            async def create_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

            async def update_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

            async def delete_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

        return [
            CustomTool("note", "Take a note.", invoke, **self.options),
            ShellTool(execute, **self.options),
            ApplyPatchTool(Editor(), **self.options),
        ]

    def agent(self, model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=self.tools())


CALLS = {
    "custom": custom_call("note", "c1", "one"),
    "shell": shell_call("c1", "one"),
    "patch": patch_call("c1", "update_file", "one"),
}
NAMES = {"custom": "note", "shell": "shell", "patch": "apply_patch"}
OUTPUT_TYPES = {
    "custom": "custom_tool_call_output",
    "shell": "shell_call_output",
    "patch": "apply_patch_call_output",
}
every_kind = pytest.mark.parametrize("kind", list(CALLS))


async def both_ways(
    make_agent: Callable[[Any], Agent[Any]], *outputs: Any, **session: Any
) -> tuple[Any, Any, Any]:
    """Run the same responses as a plain run and as a session; return both models and the turn."""
    steps = [whole(*outputs), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(make_agent(plain_model), list(USER))
    turn = await session_of(make_agent(model), **session).turn("go")
    assert turn.text == "done"
    return plain_model, model, turn


def assert_same_requests(plain_model: Any, model: Any) -> None:
    assert [as_text(c.input) for c in model.calls] == [as_text(c.input) for c in plain_model.calls]


def assert_same_outputs(plain_model: Any, model: Any) -> None:
    assert sorted(as_text(model.calls[1].input)) == sorted(as_text(plain_model.calls[1].input))


def output_of(model: Any) -> Any:
    return model.calls[-1].input[-1]
