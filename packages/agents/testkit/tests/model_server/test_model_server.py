"""The scripted model behind the real `openai` client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import (
    APIConnectionError,
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    RateLimitError,
)

from dex_agents.testing import FileGate, wait_until
from dex_agents_testkit.model_server import (
    RunningModelServer,
    read_recorded_requests,
    serve_model_script,
)

TOOL_TURN: dict[str, Any] = {
    "turns": [
        {
            "replies": [
                {
                    "reasoning": ["I should look."],
                    "text": "Looking...",
                    "tool_calls": [{"name": "look", "arguments": {"id": 7}, "call_id": "c1"}],
                    "usage": {
                        "input_tokens": 20,
                        "output_tokens": 9,
                        "cached_input_tokens": 4,
                        "reasoning_tokens": 3,
                    },
                },
                {"text": "Found ${tool:look}."},
            ]
        }
    ]
}


NATIVE_TURN: dict[str, Any] = {
    "rules": [
        {
            "reply": {
                "reasoning": ["I should look."],
                "encrypted_reasoning": "sealed",
                "tool_calls": [
                    {"type": "custom_tool_call", "name": "look", "input": "the whole of it"},
                    {"type": "shell_call", "commands": ["ls", "cat a file"], "timeout_ms": 900},
                    {
                        "type": "apply_patch_call",
                        "operation": {"type": "update_file", "path": "a", "diff": "+a line"},
                    },
                    {
                        "type": "apply_patch_call",
                        "operation": {"type": "delete_file", "path": "b"},
                    },
                ],
            }
        }
    ]
}
ENCRYPTED: Any = ["reasoning.encrypted_content"]


@asynccontextmanager
async def scripted(
    script: dict[str, Any], *, retries: int = 0, **options: Any
) -> AsyncGenerator[tuple[AsyncOpenAI, RunningModelServer]]:
    async with (
        serve_model_script(script, **options) as server,
        AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=retries) as client,
    ):
        yield client, server


async def read_all(stream: AsyncIterable[Any], types: list[str]) -> None:
    """Read a stream to its end and note the types of its events."""
    async for event in stream:
        types.append(getattr(event, "type", "chunk"))


async def test_a_response_holds_reasoning_text_and_calls_in_order() -> None:
    async with scripted(TOOL_TURN) as (client, _):
        response = await client.responses.create(model="m", input="hello")

    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "Looking..."
    assert response.usage is not None
    assert response.usage.total_tokens == 29
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 3


async def test_streamed_events_build_up_exactly_the_completed_response() -> None:
    async with scripted(TOOL_TURN) as (client, _):
        whole = await client.responses.create(model="m", input="hello")
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events = [event async for event in stream]

    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    arguments = [
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    ]
    thoughts = [
        event.delta for event in events if event.type == "response.reasoning_summary_text.delta"
    ]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(texts) == "Looking..."
    assert json.loads("".join(arguments)) == {"id": 7}
    assert "".join(thoughts) == "I should look."
    assert done == last.response.output == whole.output


async def test_every_kind_of_call_is_streamed_as_it_is_answered() -> None:
    async with scripted(NATIVE_TURN) as (client, _):
        whole = await client.responses.create(model="m", input="hello", include=ENCRYPTED)
        stream = await client.responses.create(
            model="m", input="hello", include=ENCRYPTED, stream=True
        )
        events: list[Any] = [event async for event in stream]

    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == whole.output
    reasoning, custom, shell, update, delete = whole.output
    assert reasoning.type == "reasoning"
    assert reasoning.encrypted_content == "sealed"
    assert custom.type == "custom_tool_call"
    assert (custom.name, custom.input) == ("look", "the whole of it")
    assert shell.type == "shell_call"
    assert (shell.action.commands, shell.action.timeout_ms) == (["ls", "cat a file"], 900)
    assert update.type == "apply_patch_call"
    assert delete.type == "apply_patch_call"
    assert update.operation.to_dict() == {"type": "update_file", "path": "a", "diff": "+a line"}
    assert delete.operation.to_dict() == {"type": "delete_file", "path": "b"}
    typed = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(typed) == "the whole of it"
    assert len(typed) > 1
    commands = [e.delta for e in events if e.type == "response.shell_call_command.delta"]
    assert "".join(commands) == "lscat a file"


async def test_reasoning_is_encrypted_for_requests_that_ask_for_it() -> None:
    async with scripted(NATIVE_TURN) as (client, _):
        response = await client.responses.create(model="m", input="hello")

    assert response.output[0].type == "reasoning"
    assert response.output[0].encrypted_content is None


async def test_a_chat_completion_refuses_a_call_that_the_api_has_no_word_for() -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    async with scripted(NATIVE_TURN) as (client, _):
        for stream in (False, True):
            with pytest.raises(BadRequestError, match="custom_tool_call"):
                await client.chat.completions.create(model="m", messages=messages, stream=stream)


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_was_cut_off_says_why(reason: str, finish: str) -> None:
    script = {"rules": [{"reply": {"text": "a long ans", "incomplete": reason}}]}
    messages: Any = [{"role": "user", "content": "hello"}]
    async with scripted(script) as (client, _):
        response = await client.responses.create(model="m", input="hello")
        stream = await client.responses.create(model="m", input="hello", stream=True)
        last = [event async for event in stream][-1]
        completion = await client.chat.completions.create(model="m", messages=messages)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m", messages=messages, stream=True
            )
        ]

    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)
    assert response.output[0].type == "message"
    assert response.output[0].status == "incomplete"
    assert last.type == "response.incomplete"
    assert last.response.output == response.output
    assert completion.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == finish


async def test_the_stream_helper_of_the_client_reads_the_stream() -> None:
    async with (
        scripted(TOOL_TURN) as (client, _),
        client.responses.stream(model="m", input="hello") as stream,
    ):
        final = await stream.get_final_response()

    assert final.output_text == "Looking..."


async def test_a_chat_completion_says_the_same_as_a_response() -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    async with scripted(TOOL_TURN) as (client, _):
        completion = await client.chat.completions.create(model="m", messages=messages)
        stream = await client.chat.completions.create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking..."
    assert [call.id for call in choice.message.tool_calls or ()] == ["c1"]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Looking..."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.id for call in calls if call.id] == ["c1"]
    pieces = [call.function.arguments or "" for call in calls if call.function]
    assert json.loads("".join(pieces)) == {"id": 7}
    assert chunks[-1].usage == completion.usage


async def test_a_repeated_request_gets_the_identical_reply() -> None:
    async with scripted({"rules": [{"reply": {"tool_calls": [{"name": "t"}]}}]}) as (client, _):
        first = await client.responses.create(model="m", input="hello")
        again = await client.responses.create(model="m", input="hello")

    assert (first.id, first.output) == (again.id, again.output)


async def test_a_reply_may_report_no_usage() -> None:
    async with scripted({"rules": [{"reply": {"text": "hi", "usage": None}}]}) as (client, _):
        response = await client.responses.create(model="m", input="hello")

    assert response.usage is None


async def test_a_request_the_script_does_not_know_is_refused_and_not_retried() -> None:
    async with scripted(TOOL_TURN, retries=2) as (client, server):
        with pytest.raises(BadRequestError, match="reply 1 of turn 2"):
            await client.responses.create(
                model="m",
                input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
            )

        assert [request.answer[:8] for request in server.requests] == ["mismatch"]


async def test_a_rate_limit_tells_how_long_to_wait_and_then_the_reply_comes() -> None:
    script = {
        "rules": [{"reply": {"text": "ok"}, "faults": [{"status": 429, "retry_after": 0.01}]}]
    }
    async with scripted(script) as (client, server):
        with pytest.raises(RateLimitError) as caught:
            await client.responses.create(model="m", input="hello")
        response = await client.responses.create(model="m", input="hello")

        assert caught.value.response.headers["retry-after"] == "0.01"
        assert response.output_text == "ok"
        assert [request.try_number for request in server.requests] == [1, 2]
        assert server.requests[0].answer.startswith("fault: StatusFault(status=429")


async def test_a_rate_limit_may_name_the_date_to_wait_for() -> None:
    script = {
        "rules": [{"reply": {"text": "ok"}, "faults": [{"status": 429, "retry_after_date": 60}]}]
    }
    asked = datetime.now(UTC)
    async with scripted(script) as (client, _):
        with pytest.raises(RateLimitError) as caught:
            await client.responses.create(model="m", input="hello")

    moment = parsedate_to_datetime(caught.value.response.headers["retry-after"])
    assert timedelta(seconds=60) <= moment - asked <= timedelta(seconds=120)


async def test_the_client_gets_over_a_scripted_outage_by_itself() -> None:
    fault = {"status": 503, "retry_after": 0.01, "times": 2}
    script = {"rules": [{"reply": {"text": "ok"}, "faults": [fault]}]}
    async with scripted(script, retries=2) as (client, server):
        response = await client.responses.create(model="m", input="hello")

        assert response.output_text == "ok"
        assert len(server.requests) == 3


async def test_an_authentication_error_keeps_its_kind_and_text() -> None:
    fault = {"status": 401, "message": "bad key"}
    script = {"rules": [{"reply": {"text": "ok"}, "faults": [fault]}]}
    async with scripted(script) as (client, _):
        with pytest.raises(AuthenticationError, match="bad key"):
            await client.responses.create(model="m", input="hello")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault", [{"hang_up": True}, {"drop_after": 0}, {"drop_after": 1}], ids=str
)
async def test_a_lost_connection_is_a_connection_error(fault: dict[str, Any], stream: bool) -> None:
    script = {"rules": [{"reply": {"text": "a long text"}, "faults": [fault]}]}
    async with scripted(script) as (client, server):

        async def ask() -> None:
            answer: Any = await client.responses.create(model="m", input="hello", stream=stream)
            await read_all(answer, [])

        with pytest.raises(APIConnectionError):
            await ask()
        again = await client.responses.create(model="m", input="hello")

        assert again.output_text == "a long text"
        assert len(server.requests) == 2


@pytest.mark.parametrize("after", [0, 1, 4, 99])
async def test_a_dropped_stream_ends_with_a_connection_error(after: int) -> None:
    script = {"rules": [{"reply": {"text": "a long text"}, "faults": [{"drop_after": after}]}]}
    async with scripted(script) as (client, _):
        stream = await client.responses.create(model="m", input="hello", stream=True)
        received: list[str] = []
        with pytest.raises(APIConnectionError):
            await read_all(stream, received)

    assert len(received) <= after


async def test_a_stalled_stream_goes_on_after_its_time() -> None:
    script = {
        "rules": [
            {"reply": {"text": "slow"}, "faults": [{"stall_after": 2, "seconds": 0.05}]},
        ]
    }
    async with scripted(script) as (client, _):
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events = [event.type async for event in stream]

    assert events[-1] == "response.completed"


async def test_a_client_that_gives_up_on_a_stall_frees_the_server() -> None:
    script = {"rules": [{"reply": {"text": "x"}, "faults": [{"stall_after": 2, "seconds": 600}]}]}
    async with scripted(script) as (client, server):
        impatient = client.with_options(timeout=0.2)
        stream = await impatient.responses.create(model="m", input="hello", stream=True)
        with pytest.raises(APIError):
            await read_all(stream, [])
        response = await client.responses.create(model="m", input="hello")

        assert response.output_text == "x"
        assert len(server.requests) == 2


async def test_a_model_failure_inside_the_stream_is_reported_in_the_stream() -> None:
    fault = {"fail_after": 2, "message": "the model fell over"}
    script = {"rules": [{"reply": {"text": "x"}, "faults": [fault, fault]}]}
    async with scripted(script) as (client, _):
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events = [event async for event in stream]
        last = events[-1]
        chat = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        with pytest.raises(APIError, match="the model fell over"):
            await read_all(chat, [])

    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "the model fell over"


async def test_a_model_failure_takes_the_place_of_a_whole_answer() -> None:
    fault = {"fail_after": 0, "code": "rate_limit_exceeded", "message": "too much", "times": 2}
    messages: Any = [{"role": "user", "content": "hello"}]
    async with scripted({"rules": [{"reply": {"text": "x"}, "faults": [fault]}]}) as (client, _):
        response = await client.responses.create(model="m", input="hello")
        completion = await client.chat.completions.create(model="m", messages=messages)

    assert response.status == "failed"
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("rate_limit_exceeded", "too much")
    assert not completion.choices
    assert completion.to_dict()["error"] == {
        "message": "too much",
        "type": "rate_limit_exceeded",
        "param": None,
        "code": "rate_limit_exceeded",
    }


async def test_a_held_stream_waits_until_the_gate_is_released(tmp_path: Path) -> None:
    script = {"rules": [{"reply": {"text": "x"}, "faults": [{"hold": "middle", "after": 3}]}]}
    async with scripted(script, gates_dir=tmp_path) as (client, _):
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events: list[str] = []
        gate = FileGate(tmp_path, "middle")
        reading = asyncio.create_task(read_all(stream, events))
        await gate.wait_until_reached()
        await wait_until("three events", lambda: len(events) == 3)
        gate.release()
        await reading

    assert events[-1] == "response.completed"


async def test_requests_are_recorded_without_the_key_and_read_back(tmp_path: Path) -> None:
    log = tmp_path / "log" / "requests.jsonl"
    async with scripted(TOOL_TURN, requests_log=log) as (client, _):
        await client.responses.create(model="m", input="hello")
    async with scripted(TOOL_TURN, requests_log=log) as (client, server):
        await client.responses.create(model="m", input="hello again")
        assert len(server.requests) == 1

    first, second = read_recorded_requests(log)
    assert (first.sequence, second.sequence) == (1, 2)
    assert first.conversation.user_texts == ("hello",)
    assert second.rule == "turn 1, reply 1"
    assert "key" not in log.read_text()


@pytest.mark.parametrize(
    ("body", "parameter"),
    [(b"{", "body"), (b"[]", "body"), (b"{}", "model"), (b'{"model":"m","input":3}', "input")],
)
async def test_a_request_that_is_not_one_gets_a_clear_error(body: bytes, parameter: str) -> None:
    async with serve_model_script(TOOL_TURN) as server, httpx2.AsyncClient() as http:
        response = await http.post(f"{server.base_url}/responses", content=body)

        assert response.status_code == 400
        assert response.json()["error"]["param"] == parameter


async def test_an_unknown_path_says_what_is_served() -> None:
    async with serve_model_script(TOOL_TURN) as server, httpx2.AsyncClient() as http:
        response = await http.get(f"{server.base_url}/models")

        assert response.status_code == 404
        assert "POST /v1/responses" in response.json()["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.test"])
async def test_only_a_loopback_address_is_accepted(host: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        async with serve_model_script(TOOL_TURN, host=host):
            pass


async def test_a_port_in_use_is_named() -> None:
    async with serve_model_script(TOOL_TURN) as server:
        with pytest.raises(OSError, match=f"port {server.port} on 127.0.0.1 cannot be used"):
            async with serve_model_script(TOOL_TURN, port=server.port):
                pass


def start_process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dex_agents_testkit.model_server", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_says_where_it_listens_and_ends_with_its_starter(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(TOOL_TURN))
    log = tmp_path / "requests.jsonl"
    options = ["--script", str(script), "--port", "0", "--requests-log", str(log), "--json"]

    with start_process(*options, "--stop-with-stdin") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        response = httpx2.post(
            f"{ready['base_url']}/responses", json={"model": "m", "input": "hello"}
        )
        process.stdin.close()
        code = process.wait(timeout=20)

    assert ready["pid"] == process.pid
    assert response.json()["status"] == "completed"
    assert code == 0
    assert len(read_recorded_requests(log)) == 1


def test_the_command_refuses_a_broken_script_with_its_place(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"reply": {"texd": "x"}}]}')

    with start_process("--script", str(script)) as process:
        _, errors = process.communicate(timeout=20)

    assert process.returncode == 2
    assert "script.json.rules[0].reply: unknown key 'texd'" in errors
