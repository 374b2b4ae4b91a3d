"""Cases about tools that fail, time out, get bad arguments or do not exist."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    RunConfig,
    Runner,
    function_tool,
)
from stepped_session import (
    as_text,
    call,
    outputs,
    response,
    says,
    script,
    session_of,
)

from dex_agents import ToolCallStatus, ToolEffect, ToolPolicy

# --- Case 2: timeouts ---------------------------------------------------------------------------


@pytest.mark.parametrize("behavior", ["error_as_result", "raise_exception"])
async def test_case_2_a_read_over_its_own_timeout_is_final_at_once(behavior: Any) -> None:
    runs: list[str] = []

    @function_tool(timeout=0.05, timeout_behavior=behavior)
    async def slow() -> str:
        """Never answers."""
        runs.append("run")
        await asyncio.Event().wait()
        return "late"

    model = script(response(call("slow", "c1")), response(says("done")))
    turn = await session_of(Agent(name="A", model=model, tools=[slow])).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert runs == ["run"]
    assert "timed out after 0.05 seconds" in outputs(model.calls[1].input)[0]


async def test_case_2_a_write_over_its_own_timeout_has_an_unknown_outcome() -> None:
    @function_tool(timeout=0.05)
    async def slow() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return "late"

    model = script(response(call("slow", "c1")), response(says("done")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[slow]),
        policies={"slow": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.OUTCOME_UNKNOWN


# --- Cases 26 and 27: failing tools -------------------------------------------------------------


async def test_case_26_a_tools_own_error_text_reaches_the_model_after_the_last_attempt() -> None:
    runs: list[str] = []

    def fail() -> str:
        """Fail."""
        runs.append("run")
        raise ValueError("secret detail")

    async def explain(_context: Any, error: Exception) -> str:
        return f"sorry, {type(error).__name__}"

    tool = function_tool(fail, failure_error_function=explain)
    model = script(response(call("fail", "c1")), response(says("done")))
    turn = await session_of(Agent(name="A", model=model, tools=[tool])).turn("go")
    assert runs == ["run"] * 3
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert turn.records["c1"].error == "sorry, ValueError"


async def test_case_26_a_formatter_of_the_run_writes_the_text_as_in_a_plain_run() -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("what went wrong")

    def explain(failure: Any) -> str:
        return f"{failure.kind} of {failure.tool_name} ({failure.call_id}): {failure.error}"

    config = RunConfig(tool_error_formatter=explain)
    steps = [response(call("fail", "c1")), response(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    tool = function_tool(fail)
    await Runner.run(Agent(name="A", model=plain_model, tools=[tool]), "go", run_config=config)
    await session_of(Agent(name="A", model=model, tools=[tool]), run_config=config).turn("go")
    assert outputs(model.calls[1].input) == ["tool_exception of fail (c1): what went wrong"]
    assert outputs(model.calls[1].input) == outputs(plain_model.calls[1].input)


@pytest.mark.parametrize("formatter", ["default", None])
async def test_case_26_a_read_without_an_own_text_is_failed_by_the_session(formatter: Any) -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("what went wrong")

    options: dict[str, Any] = {} if formatter == "default" else {"failure_error_function": None}
    model = script(response(call("fail", "c1")), response(says("done")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[function_tool(fail, **options)])
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert turn.records["c1"].error == "ValueError: what went wrong", "the body's own exception"


async def test_case_26_a_failing_write_has_an_unknown_outcome_whatever_its_formatter() -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("half done")

    tool = function_tool(fail, failure_error_function=lambda _context, _error: "sorry")
    model = script(response(call("fail", "c1")), response(says("done")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[tool]), default_effect=ToolEffect.IDEMPOTENT_WRITE
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.OUTCOME_UNKNOWN
    assert "not known" in outputs(model.calls[1].input)[0]


BAD_ARGUMENTS = ["", "null", "[]", "{", '{"x":1}', '{"x":{}}', "[" * 500]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=range(len(BAD_ARGUMENTS)))
async def test_case_27_bad_arguments_fail_the_call_once_without_running_it(arguments: str) -> None:
    runs: list[str] = []

    @function_tool
    def ping(x: str) -> str:
        """Answer."""
        runs.append(x)
        return x

    bad = call("ping", "c1")
    bad.arguments = arguments
    model = script(response(bad), response(says("done")))
    session = session_of(
        Agent(name="A", model=model, tools=[ping]),
        policies={"ping": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)},
    )
    turn = await session.turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert turn.records["c1"].error == "Invalid JSON input for tool ping"
    assert runs == []
    assert turn.text == "done"


async def test_case_27_arguments_nested_beyond_reading_fail_the_turn_once() -> None:
    @function_tool
    def ping(x: str) -> str:
        """Answer."""
        return x

    bad = call("ping", "c1")
    bad.arguments = "[" * 100_000
    model = script(response(bad))
    turn = await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    assert turn.failure.error_type == "RecursionError"


async def test_case_27_an_extra_argument_is_accepted_as_in_a_plain_run() -> None:
    @function_tool
    def ping(x: str) -> str:
        """Answer."""
        return x

    model = script(response(call("ping", "c1", x="1", extra=2)), response(says("done")))
    turn = await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    assert turn.records["c1"].output == "1"


# --- Case 28: unknown tools ---------------------------------------------------------------------


@pytest.mark.parametrize("with_known", [True, False])
async def test_case_28_an_unknown_tool_is_answered_by_an_error_and_one_call_per_step(
    with_known: bool,
) -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    known = [call("ping", "c2")] if with_known else []
    steps = [response(call("nope", "c1"), *known), response(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    await Runner.run(
        Agent(name="A", model=plain_model, tools=[ping]),
        [{"role": "user", "content": "go"}],
        run_config=config,
    )
    turn = await session_of(Agent(name="A", model=model, tools=[ping]), run_config=config).turn(
        "go"
    )
    assert turn.kinds == ["ToolCallsRequested" if with_known else "TurnContinues", "TurnCompleted"]
    # The error of the unknown tool is known first here; a plain run adds it last.
    assert sorted(as_text(model.calls[1].input)) == sorted(as_text(plain_model.calls[1].input))


async def test_case_28_an_unknown_tool_fails_the_turn_once_by_default() -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    model = script(response(call("nope", "c1"), call("ping", "c2")))
    turn = await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    assert turn.failure.error_type == "ModelBehaviorError"
    assert "nope" in turn.failure.message
    assert len(model.calls) == 1


async def test_case_2_an_agent_used_as_a_tool_over_its_timeout_is_told_as_in_a_plain_run() -> None:
    class Stuck(Model):
        """A model that never answers."""

        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    def agent(model: Any) -> Agent[Any]:
        tool = Agent(name="Inner", model=Stuck()).as_tool("inner", "Ask.")
        tool.timeout_seconds = 0.05
        return Agent(name="A", model=model, tools=[tool])

    steps = [response(call("inner", "c1", input="x")), response(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(agent(plain_model), "go")
    turn = await session_of(agent(model), models=[model]).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert outputs(model.calls[1].input) == outputs(plain_model.calls[1].input)
    assert "timed out" in outputs(model.calls[1].input)[0]
