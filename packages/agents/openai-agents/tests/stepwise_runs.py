"""An agent with a nested agent in Steps, run both as a session and plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import Agent, Runner, function_tool
from stepped_session import (
    SteppedSession,
    SteppedTurn,
    as_text,
    call,
    response,
    says,
    script,
    session_of,
)

from dex_agents_openai_agents import get_current_deferred_tool_execution, stepwise_agent_tool

USER: list[Any] = [{"role": "user", "content": "go"}]


def ask(call_id: str, text: str = "look", name: str = "inner") -> Any:
    return call(name, call_id, input=text)


class Two:
    """An outer agent with one nested agent, both with a `look` of their own."""

    def __init__(self, outer: list[Any], inner: list[Any], **options: Any) -> None:
        self.outer_model, self.inner_model = script(*outer), script(*inner)
        self.ran: list[str] = []
        self.keys: list[Any] = []
        two = self

        @function_tool
        def look(x: int) -> str:
            """Look."""
            two.ran.append(f"look {x}")
            execution = get_current_deferred_tool_execution()
            two.keys.append(execution and execution.idempotency_key)
            return f"saw {x}"

        @function_tool(needs_approval=True)
        def pay(amount: int) -> str:
            """Pay."""
            two.ran.append(f"pay {amount}")
            return f"paid {amount}"

        @function_tool
        def fail() -> str:
            """Fail."""
            raise ValueError("no")

        @function_tool
        def ping() -> str:
            """Answer."""
            two.ran.append("ping")
            return "pong"

        self.inner = Agent(
            name="Inner", model=self.inner_model, instructions="in", tools=[look, pay, fail]
        )
        self.outer = Agent(
            name="Outer",
            model=self.outer_model,
            instructions="out",
            tools=[stepwise_agent_tool(self.inner, "inner", "Ask inside.", **options), ping],
        )

    def session(self, **options: Any) -> SteppedSession:
        return session_of(
            self.outer,
            models=[self.outer_model, self.inner_model],
            body_runs=lambda: len(self.ran),
            **options,
        )

    def requests(self) -> list[list[str]]:
        calls = [*self.outer_model.calls, *self.inner_model.calls]
        return [as_text(c.input) for c in calls]


async def both_ways(make: Callable[[], Two], **session: Any) -> tuple[Two, SteppedTurn]:
    """Run a plain run and a session; their requests and answers must be the same."""
    plain, two = make(), make()
    result = await Runner.run(plain.outer, list(USER))
    turn = await two.session(**session).turn("go")
    assert turn.text == result.final_output
    assert two.requests() == plain.requests()
    usage = result.context_wrapper.usage
    assert (turn.usage.model_calls, turn.usage.total_tokens) == (usage.requests, usage.total_tokens)
    return two, turn


def usual() -> Two:
    return Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[
            response(call("look", "n1", x=1), call("look", "n2", x=2)),
            response(call("look", "n3", x=3)),
            response(says("inner done")),
        ],
    )


async def both_ways_by_requests(make: Callable[[], Two]) -> Two:
    plain, two = make(), make()
    await Runner.run(plain.outer, list(USER))
    await two.session().turn("go")
    assert two.requests() == plain.requests()
    return two
