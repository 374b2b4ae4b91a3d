"""What becomes of a nested run in Steps that fails, or whose process is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
from agents import Agent, Model, ModelResponse, function_tool
from agents.testing import ModelStep
from forked_steps import ForkedRunner, reach
from native_calls import spent
from stepped_session import SteppedSession, call, response, says
from stepwise_runs import Two, ask, both_ways, both_ways_by_requests

from dex_agents import ModelError, ToolCallStatus
from dex_agents_openai_agents import OpenAIAgentsRunner, stepwise_agent_tool


async def test_a_failing_tool_inside_is_told_to_the_nested_model_as_in_a_plain_run() -> None:
    _, turn = await both_ways(
        lambda: Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(call("fail", "n1")), response(says("inner done"))],
        )
    )
    assert turn.records["n1"].status is ToolCallStatus.FAILED


async def test_the_limit_of_nested_model_calls_is_told_to_the_outer_model() -> None:
    two = await both_ways_by_requests(
        lambda: Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(call("look", "n1", x=1)), response(call("look", "n2", x=2))],
            max_turns=2,
        )
    )
    assert two.ran == ["look 1", "look 2"]


async def test_arguments_that_do_not_fit_start_nothing() -> None:
    bad = ask("p1")
    bad.arguments = "{"
    await both_ways_by_requests(
        lambda: Two(outer=[response(bad), response(says("done"))], inner=[])
    )


def status_error(status: int) -> Exception:
    request = SimpleNamespace(method="POST", url="https://model.invalid")
    answer: Any = SimpleNamespace(status_code=status, headers={}, request=request)
    return openai.APIStatusError("no", response=answer, body=None)


async def test_an_overloaded_provider_is_asked_again_and_not_told_to_the_outer_model() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[ModelStep(error=status_error(503))],
    )
    turn = await two.session().turn("go")
    assert isinstance(turn.outcome, ModelError)
    assert len(two.outer_model.calls) == 1


async def test_a_refused_request_of_a_nested_model_ends_the_turn_once() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[ModelStep(error=status_error(400))],
    )
    turn = await two.session().turn("go")
    assert "refused the request (400)" in turn.failure.message


async def test_an_id_that_a_nested_agent_repeats_ends_the_turn_with_words() -> None:
    two = Two(
        outer=[response(ask("p1"), call("ping", "x")), response(says("done"))],
        inner=[response(call("look", "x", x=1))],
    )
    turn = await two.session().turn("go")
    assert turn.failure.error_type == "ToolCallIdRepeated"
    assert "'x'" in turn.failure.message
    assert two.ran == ["ping"]


class Following(Model):
    """A model without a memory: the outputs it was sent decide what it says."""

    def __init__(self, name: str, *said: Any) -> None:
        self._name = name
        self._said = said

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items = kwargs["input"] if "input" in kwargs else args[1]
        number = sum(1 for item in items if "output" in item)
        reach(f"model {self._name} {number}")
        return ModelResponse(output=[self._said[number]], usage=spent(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def test_a_killed_nested_run_repeats_the_one_call_that_was_running(tmp_path: Path) -> None:
    log = tmp_path / "log"

    @function_tool
    def look(x: int) -> str:
        """Look."""
        with log.open("a") as file:
            file.write(f"look {x}\n")
        reach(f"tool n{x}")
        return f"saw {x}"

    def build() -> OpenAIAgentsRunner:
        inner = Agent(
            name="Inner",
            model=Following(
                "inner", call("look", "n1", x=1), call("look", "n2", x=2), says("inner done")
            ),
            tools=[look],
        )
        outer = Agent(
            name="Outer",
            model=Following("outer", ask("p1"), says("done")),
            tools=[stepwise_agent_tool(inner, "inner", "Ask.")],
        )
        return OpenAIAgentsRunner(outer)

    await asyncio.gather(asyncio.to_thread(int))  # the thread pool is there before a fork
    runner = ForkedRunner(build, {"model inner 1", "tool n2"})
    any_runner: Any = runner
    turn = await SteppedSession(lambda: any_runner).turn("go")
    assert turn.text == "done"
    assert sorted(runner.killed) == ["model inner 1", "tool n2"]
    assert log.read_text().splitlines() == ["look 1", "look 2", "look 2"]
    assert turn.usage.model_calls == 5, "failed attempts are not part of the usage"
