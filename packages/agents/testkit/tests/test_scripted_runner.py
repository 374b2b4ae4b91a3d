"""`ScriptedRunner` in process: what a session would ask it, asked by hand."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dex_agents.errors import ModelError, ToolExecutionError, TurnFailedError
from dex_agents.events import AgentEventWriter
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    ToolCallsRequested,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
)
from dex_agents.testing import FileGate, InvocationLog
from dex_agents.values import (
    AgentEvent,
    AgentMessage,
    AgentToolCall,
    AgentUsage,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
)
from dex_agents_testkit import (
    RunnerScript,
    ScriptedCallError,
    ScriptedReply,
    ScriptedRunner,
    ScriptError,
    ScriptMismatchError,
    load_runner_script,
    parse_runner_script,
)

REFUND: dict[str, Any] = {
    "tools": {
        "look": {"effect": "read", "output": "order $order is paid"},
        "refund": {"effect": "non_idempotent_write", "output": "refunded $order"},
    },
    "turns": [
        {
            "user": "refund order 7",
            "replies": [
                {
                    "text": "Let me see.",
                    "reasoning": ["hm"],
                    "tool_calls": [
                        {"id": "c1", "name": "look", "arguments": {"order": "7"}},
                        {"id": "c2", "name": "refund", "arguments": {"order": "7"}},
                    ],
                    "usage": {"input_tokens": 10, "output_tokens": 5},
                },
                {"continues": True},
                {"message": "Done."},
            ],
        }
    ],
}


async def no_heartbeat() -> None:
    pass


def said(text: str, turn_id: str = "turn-1") -> AgentMessage:
    return AgentMessage(1, turn_id, MessageRole.USER, text, "{}", datetime.now(UTC))


class Asked:
    """Asks a runner the way a session does and keeps the events."""

    def __init__(self, runner: ScriptedRunner) -> None:
        self.runner = runner
        self.events: list[AgentEvent] = []

    async def model(
        self,
        *,
        text: str = "refund order 7",
        turn_id: str = "turn-1",
        attempt: int = 1,
        state: str | None = None,
        records: Sequence[AgentToolCall] = (),
        policies: Mapping[str, ToolPolicy] | None = None,
    ) -> AgentTurnOutcome:
        writer = self._writer(turn_id, attempt)
        turn = AgentTurnContext(
            flow_id="s",
            turn_id=turn_id,
            attempt=attempt,
            messages=(said(text, turn_id),),
            framework_run_state=state,
            tool_calls={record.tool_call_id: record for record in records},
            events=writer,
            heartbeat=no_heartbeat,
            tool_policies=self.runner.tool_policies() if policies is None else policies,
        )
        try:
            return await self.runner.run_model_step(turn)
        finally:
            writer.close()

    async def tool(self, name: str, arguments: str = "{}", attempt: int = 1) -> str:
        writer = self._writer("turn-1", attempt)
        record = AgentToolCall("c1", "turn-1", name, arguments, ToolEffect.READ, False, 0)
        call = DeferredToolExecution("s", record, "s/turn-1/c1", attempt, writer, no_heartbeat)
        return (await self.runner.execute_deferred_tool_call(call)).output

    def _writer(self, turn_id: str, attempt: int) -> AgentEventWriter:
        return AgentEventWriter(
            self.events.append, turn_id=turn_id, step_execution_id="step-1", attempt=attempt
        )


def final(call_id: str, name: str, output: str) -> AgentToolCall:
    return AgentToolCall(
        call_id,
        "turn-1",
        name,
        "{}",
        ToolEffect.READ,
        False,
        0,
        status=ToolCallStatus.SUCCEEDED,
        output=output,
    )


def runner_for(script: dict[str, Any], **options: Any) -> Asked:
    return Asked(ScriptedRunner(parse_runner_script(script), **options))


def requested(outcome: AgentTurnOutcome) -> ToolCallsRequested:
    assert isinstance(outcome, ToolCallsRequested)
    return outcome


def items(messages: Sequence[FrameworkMessage]) -> list[dict[str, Any]]:
    return [json.loads(message.framework_item) for message in messages]


def test_it_is_a_runner() -> None:
    runner = ScriptedRunner(parse_runner_script(REFUND))

    assert isinstance(runner, AgentFrameworkRunner)
    message = runner.build_user_message("hi")
    assert (message.role, message.text) == (MessageRole.USER, "hi")


async def test_a_turn_is_played_reply_by_reply_and_ends_with_all_its_items() -> None:
    asked = runner_for(REFUND)
    records = [final("c1", "look", "paid"), final("c2", "refund", "refunded")]

    first = requested(await asked.model())
    second = await asked.model(state=first.framework_run_state, records=records)
    assert isinstance(second, TurnContinues)
    third = await asked.model(state=second.framework_run_state, records=records)

    assert isinstance(third, TurnCompleted)
    assert [item["type"] for item in items(third.new_messages)] == [
        "message",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "message",
    ]
    assert [item["output"] for item in items(third.new_messages) if "output" in item] == [
        "paid",
        "refunded",
    ]
    assert third.new_messages[-1].text == "Done."


async def test_a_repeated_model_step_gets_the_same_reply() -> None:
    asked = runner_for(REFUND)

    assert await asked.model(attempt=1) == await asked.model(attempt=3)


async def test_calls_carry_the_policies_of_the_script() -> None:
    outcome = requested(await runner_for(REFUND).model())

    assert [call.policy.effect for call in outcome.tool_calls] == [
        ToolEffect.READ,
        ToolEffect.NON_IDEMPOTENT_WRITE,
    ]
    assert outcome.usage == AgentUsage(1, 10, 5, 15)


async def test_model_calls_and_tools_take_the_time_that_the_script_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asked = runner_for(
        {
            "tools": {"look": {"delay": 0.5, "usage": {"input_tokens": 3}}},
            "turns": [{"replies": [{"message": "Done.", "delay": 7, "deltas": ["Do", "ne."]}]}],
        }
    )
    await asked.model()
    assert slept == [7]
    # What was streamed stands before the time that the call takes.
    assert "".join(str(event.payload["text"]) for event in asked.events) == "Done."
    assert await asked.tool("look") == "ok"
    assert slept == [7, 0.5]


async def test_text_and_reasoning_are_streamed() -> None:
    asked = runner_for(REFUND)
    await asked.model()

    assert [(event.type, event.payload) for event in asked.events] == [
        ("reasoning_delta", {"text": "hm"}),
        ("text_delta", {"text": "Let me see."}),
    ]


async def test_every_call_is_recorded_with_what_it_was_given(tmp_path: Path) -> None:
    log = InvocationLog(tmp_path / "calls.jsonl")
    asked = runner_for(REFUND, log=log)

    await asked.model(attempt=2)
    output = await asked.tool("refund", '{"order": "7"}')

    assert output == "refunded 7"
    model, tool = log.entries()
    assert model.name == "run_model_step"
    assert model.details["messages"] == [[1, "user", "refund order 7"]]
    assert (model.details["attempt"], model.details["reply"]) == (2, 1)
    assert tool.name == "refund"
    assert tool.details["idempotency_key"] == "s/turn-1/c1"
    assert tool.details["arguments"] == {"order": "7"}


async def test_a_script_that_does_not_fit_fails_the_turn_and_says_why() -> None:
    asked = runner_for(REFUND)

    with pytest.raises(ScriptMismatchError, match="for 'refund order 7', but the user said 'hi'"):
        await asked.model(text="hi")
    with pytest.raises(ScriptMismatchError, match="has 1 turns, but turn-2 is asked for"):
        await asked.model(turn_id="turn-2")
    with pytest.raises(ScriptMismatchError, match="has 3 replies, but reply 4 is asked for"):
        await asked.model(state='{"next": 3, "items": [], "pending": []}')
    with pytest.raises(ScriptMismatchError, match="without a record of call 'c1'"):
        await asked.model(state=requested(await asked.model()).framework_run_state)


async def test_a_mismatch_is_final_for_the_turn() -> None:
    with pytest.raises(TurnFailedError) as caught:
        await runner_for(REFUND).model(text="hi")

    assert caught.value.error_type == "ScriptMismatchError"


async def test_a_turn_can_come_with_the_message() -> None:
    asked = runner_for({"turn_in_message": True})

    outcome = await asked.model(text='{"replies": [{"message": "from the message"}]}')

    assert isinstance(outcome, TurnCompleted)
    assert outcome.new_messages[-1].text == "from the message"
    with pytest.raises(ScriptMismatchError, match="not the JSON of a turn"):
        await asked.model(text="hello")


async def test_first_attempts_fail_as_scripted_and_then_the_reply_comes() -> None:
    failures = [{"message": "busy", "retry_after": 3, "attempts": 2}, {"message": "odd"}]
    asked = runner_for({"turns": [{"replies": [{"message": "ok", "failures": failures}]}]})

    for attempt in (1, 2):
        with pytest.raises(ModelError, match="busy") as caught:
            await asked.model(attempt=attempt)
        assert caught.value.retry_after == 3
    with pytest.raises(ScriptedCallError, match="odd"):
        await asked.model(attempt=3)
    assert isinstance(await asked.model(attempt=4), TurnCompleted)


async def test_a_scripted_turn_failure_is_final_and_typed() -> None:
    reply = {"turn_failure": "blocked", "turn_failure_type": "GuardrailTripped"}
    with pytest.raises(TurnFailedError, match="blocked") as caught:
        await runner_for({"turns": [{"replies": [reply]}]}).model()

    assert caught.value.error_type == "GuardrailTripped"


async def test_tools_fail_for_the_model_or_for_the_engine() -> None:
    asked = runner_for(
        {
            "tools": {
                "closed": {"error": "the shop is closed"},
                "shaky": {"failures": [{"message": "try again"}]},
            },
            "turns": [{"replies": [{"message": "ok"}]}],
        }
    )

    with pytest.raises(ToolExecutionError, match="the shop is closed"):
        await asked.tool("closed")
    with pytest.raises(ScriptedCallError, match="try again"):
        await asked.tool("shaky", attempt=1)
    assert await asked.tool("shaky", attempt=2) == "ok"
    with pytest.raises(ToolExecutionError, match="no tool 'other'"):
        await asked.tool("other")
    with pytest.raises(ToolExecutionError, match="not JSON"):
        await asked.tool("shaky", "{", attempt=2)


async def test_a_failed_attempt_of_a_tool_has_no_effect(tmp_path: Path) -> None:
    log = InvocationLog(tmp_path / "calls.jsonl")
    asked = runner_for(
        {
            "tools": {"shaky": {"failures": [{}]}},
            "turns": [{"replies": [{"message": "ok"}]}],
        },
        log=log,
    )

    with pytest.raises(ScriptedCallError):
        await asked.tool("shaky", attempt=1)

    assert log.count("shaky") == 0


async def test_gates_stop_a_tool_before_and_after_its_effect(tmp_path: Path) -> None:
    log = InvocationLog(tmp_path / "calls.jsonl")
    tool = {"gate_before": "before", "gate_after": "after"}
    asked = runner_for(
        {"tools": {"pay": tool}, "turns": [{"replies": [{"message": "ok"}]}]},
        log=log,
        state_dir=tmp_path,
    )
    calling = asyncio.create_task(asked.tool("pay"))
    await FileGate(tmp_path, "before").wait_until_reached()
    assert log.count("pay") == 0
    FileGate(tmp_path, "before").release()
    await FileGate(tmp_path, "after").wait_until_reached()
    assert log.count("pay") == 1
    assert not calling.done()
    FileGate(tmp_path, "after").release()

    assert await calling == "ok"


def test_a_script_with_gates_needs_a_folder_for_them() -> None:
    script = parse_runner_script({"turns": [{"replies": [{"message": "ok", "gate": "g"}]}]})

    with pytest.raises(ScriptError, match="gate 'g' needs a state_dir"):
        ScriptedRunner(script)


def test_a_scripted_crash_kills_the_process(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps(
            {
                "tools": {"pay": {"failures": [{"kind": "crash"}]}},
                "turns": [{"replies": [{"message": "ok"}]}],
            }
        )
    )
    program = (
        "import asyncio, test_scripted_runner as t\n"
        f"asked = t.Asked(t.ScriptedRunner({str(script)!r}))\n"
        "asyncio.run(asked.tool('pay'))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, check=False, timeout=60
    )

    assert done.returncode == -9


def test_a_script_file_reads_like_the_data(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(REFUND))

    assert load_runner_script(path) == parse_runner_script(REFUND)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({}, "has no turns"),
        ({"turns": [{"replies": []}]}, "at least one reply"),
        ({"turns": [{"replies": [{}]}]}, r"turns\[0\].replies\[0\]: exactly one of"),
        ({"turns": [{"replies": [{"message": "a", "continues": True}]}]}, "exactly one of"),
        ({"turns": [{"replies": [{"mesage": "a"}]}]}, "unknown key 'mesage'"),
        ({"turns": [{"replies": [{"tool_calls": [{"id": "c"}]}]}]}, "'name' is missing"),
        ({"tools": {"t": {"effect": "red"}}}, "tools.t.effect: expected one of read"),
        ({"tools": {"run_model_step": {}}, "turn_in_message": True}, "is the name under which"),
        ({"turns": [{"replies": [{"message": "a", "failures": [{"kind": "x"}]}]}]}, "model_error"),
        ({"turns": [{"replies": [{"message": "a", "delay": "1"}]}]}, "a number of seconds"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_place(
    script: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScriptError, match=message):
        parse_runner_script(script)


def test_a_script_may_be_written_in_python() -> None:
    script = RunnerScript(turns=(), turn_in_message=True)

    assert ScriptedRunner(script).tool_policies() == {}
    with pytest.raises(ScriptError, match="exactly one of"):
        ScriptedReply(message="a", continues=True)
