"""The two Flows that are measured: an agent session, and the same Steps with nothing in them.

A turn of both is nine worker tasks: the call that sends the message, the Step that takes it, two
model Steps, two tool Steps side by side, and the Step that waits for them and for the next message.
Model and tools answer at once, so all that is measured is the work around them.
"""

# The SDK takes asynchronous handlers; its base class is typed for synchronous ones.
# pyright: reportIncompatibleMethodOverride=false
# The SDK reads the annotations of handlers, so they must not be strings.

import json

from dex import (
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Stream,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    rpc,
)

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)

SESSION_FLOW = "BenchmarkSession"
BARE_FLOW = "BenchmarkBare"
MESSAGE = "Where is order 7? " * 11

_USAGE = AgentUsage(model_calls=1, input_tokens=100, output_tokens=20, total_tokens=120)
_TOOL_OUTPUT = "on its way " * 10
_ANSWER = "It left the warehouse. " * 9


class InstantRunner:
    """One model call asks for two reads at once, the next answers; nothing takes any time."""

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(
            MessageRole.USER, json.dumps({"role": "user", "content": text}), text
        )

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        if not turn.is_resuming:
            policy = turn.resolve_tool_policy("look_up")
            calls = [DeferredToolCall(f"call_{n}", "look_up", "{}", policy) for n in (1, 2)]
            return ToolCallsRequested("asked", tuple(calls), _USAGE)
        turn.events.write_text_delta(_ANSWER)
        asked = FrameworkMessage(MessageRole.ASSISTANT, json.dumps({"calls": 2}), "")
        results = [
            FrameworkMessage(MessageRole.TOOL, json.dumps({"output": call.output}), "")
            for call in turn.tool_calls.values()
        ]
        answer = FrameworkMessage(MessageRole.ASSISTANT, json.dumps({"text": _ANSWER}), _ANSWER)
        return TurnCompleted((asked, *results, answer), _USAGE)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        return ToolExecutionResult(_TOOL_OUTPUT)


def session_flow() -> AgentSessionFlow:
    options = AgentSessionOptions(tool_policies={"look_up": ToolPolicy(ToolEffect.READ)})
    return AgentSessionFlow(InstantRunner(), flow_type=SESSION_FLOW, options=options)


# --- the bare Flow --------------------------------------------------------------------------------

INBOX: Channel[str] = Channel("Inbox", str)
RESULTS: Channel[str] = Channel("Results", str)
DONE: Stream[str] = Stream("Done", str, 10_000_000)


class Await(Step[int]):
    """Waits for a message; its input is the number of turns so far."""

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        if input:
            DONE.write(context, str(input))
        return Wait.until(INBOX.for_one())

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return go_to(Model, 2 * input + 2)


class Model(Step[int]):
    """The first of two models of a turn has an even input."""

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if input % 2:
            return go_to(Await, input // 2)
        return go_to_many(
            StepMovement(Tool, "a"),
            StepMovement(Tool, "b"),
            StepMovement(Resume, input),
        )


class Tool(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        RESULTS.publish(context, input)
        return dead_end()


class Resume(Step[int]):
    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.until(RESULTS.for_n(2))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return go_to(Model, input + 1)


class BareFlow(Flow[int]):
    """The Steps of a turn without state, history and live events, but the one that it is over."""

    def get_flow_type(self) -> str:
        return BARE_FLOW

    def get_steps(self) -> StepList[int]:
        return StepList[int].start_step(Await()).other_steps(Model(), Tool(), Resume())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(INBOX, RESULTS, DONE)

    @rpc(is_transactional=True)
    def send(self, context: Context, text: str) -> RPCResult[bool]:
        INBOX.publish(context, text)
        return RPCResult(True)
