"""The HTTP face of the scripted model: two endpoints over one script."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dex_agents_testkit.model_server import chat_wire, responses_wire
from dex_agents_testkit.model_server.conversation import (
    Conversation,
    RequestError,
    read_chat_request,
    read_responses_request,
)
from dex_agents_testkit.model_server.faults import (
    DropFault,
    FailFault,
    Fault,
    HangUpFault,
    HoldFault,
    StallFault,
    StatusFault,
)
from dex_agents_testkit.model_server.matching import Answer, NoScriptedAnswerError, find_answer
from dex_agents_testkit.model_server.recording import (
    CHAT_PATH,
    RESPONSES_PATH,
    RecordedRequest,
    RequestLog,
)
from dex_agents_testkit.model_server.replies import Event, encode_event, error_body
from dex_agents_testkit.model_server.script import ModelScript

GATE_POLL_SECONDS = 0.02
#: Extension of the connection that ends it at once, given by the server.
HANG_UP = "dex_agents_testkit.hang_up"


@dataclass(frozen=True, slots=True)
class _Api:
    """What differs between the two endpoints."""

    path: str
    read: Callable[[Mapping[str, Any]], Conversation]
    names_events: bool


RESPONSES_API = _Api(RESPONSES_PATH, read_responses_request, names_events=True)
CHAT_API = _Api(CHAT_PATH, read_chat_request, names_events=False)


class ScriptedModelApp:
    """Answers model requests from a script. State: the request log and how often each was asked."""

    def __init__(self, script: ModelScript, log: RequestLog, gates_dir: Path | None = None) -> None:
        self._script = script
        self._log = log
        self._gates_dir = gates_dir
        self._tries: dict[tuple[str, str], int] = {}

    def build(self) -> Starlette:
        """Build the ASGI application."""
        return Starlette(
            routes=[
                Route(RESPONSES_PATH, self._responses, methods=["POST"]),
                Route(CHAT_PATH, self._chat, methods=["POST"]),
                Route("/{path:path}", self._unknown, methods=["GET", "POST", "PUT", "DELETE"]),
            ]
        )

    async def _responses(self, request: Request) -> Response:
        return await self._answer(request, RESPONSES_API)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, CHAT_API)

    async def _unknown(self, request: Request) -> Response:
        message = f"the scripted model serves POST {RESPONSES_PATH} and POST {CHAT_PATH} only"
        return JSONResponse(error_body(message, "not_found"), status_code=404)

    async def _answer(self, request: Request, api: _Api) -> Response:
        try:
            body = await _json_object(request)
            conversation = api.read(body)
        except RequestError as error:
            self._record(api, {}, None, 1, f"refused: {error}")
            return JSONResponse(
                error_body(str(error), "invalid_request_error", error.parameter),
                status_code=error.status,
            )
        try_number = self._count_try(api, conversation)
        try:
            answer = find_answer(self._script, conversation)
        except NoScriptedAnswerError as error:
            self._record(api, body, None, try_number, f"mismatch: {error}")
            return _mismatch_response(error)
        fault = answer.rule.fault_for_try(try_number)
        said = "reply" if fault is None else f"fault: {fault}"
        self._record(api, body, answer.rule.name, try_number, said)
        match fault:
            case StatusFault():
                return _status_response(fault)
            case HangUpFault():
                return _NoResponse()
            case _:
                pass
        try:
            parts = self._parts(api, body, conversation, answer, fault)
        except chat_wire.NotInThisApiError as error:
            return _mismatch_response(error)
        return _ScriptedBody(parts, fault, answer.reply.piece_delay, self._gates_dir)

    def _count_try(self, api: _Api, conversation: Conversation) -> int:
        key = (api.path, conversation.fingerprint())
        self._tries[key] = self._tries.get(key, 0) + 1
        return self._tries[key]

    def _record(
        self,
        api: _Api,
        body: Mapping[str, Any],
        rule: str | None,
        try_number: int,
        answer: str,
    ) -> None:
        sequence = self._log.next_sequence()
        self._log.add(
            RecordedRequest(sequence, time.time(), api.path, rule, try_number, answer, body)
        )

    def _parts(
        self,
        api: _Api,
        body: Mapping[str, Any],
        conversation: Conversation,
        answer: Answer,
        fault: Fault | None,
    ) -> _Parts:
        now = time.time()
        if not body.get("stream"):
            if isinstance(fault, FailFault):
                whole = _failure(api, conversation, now, fault)
            elif api is RESPONSES_API:
                whole = responses_wire.response_object(answer.reply, conversation, now)
            else:
                whole = chat_wire.completion_object(answer.reply, conversation, now)
            text = bytes(JSONResponse(whole).body)
            # Two parts, so that a fault can strike in the middle.
            return _Parts("application/json", (text[: len(text) // 2], text[len(text) // 2 :]))
        events = _events(api, body, conversation, answer, now)
        if isinstance(fault, FailFault):
            failure = _failure(api, conversation, now, fault)
            if api is RESPONSES_API:
                failure = responses_wire.failed_event(failure, fault.after)
            events = [*events[: fault.after], failure]
        parts = [encode_event(event, named=api.names_events) for event in events]
        if api is CHAT_API and not isinstance(fault, FailFault):
            parts.append(b"data: [DONE]\n\n")
        return _Parts("text/event-stream; charset=utf-8", tuple(parts))


def _events(
    api: _Api, body: Mapping[str, Any], conversation: Conversation, answer: Answer, now: float
) -> Sequence[Event]:
    if api is RESPONSES_API:
        return responses_wire.response_events(answer.reply, conversation, now)
    options = body.get("stream_options")
    asked = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    return chat_wire.completion_chunks(
        answer.reply, conversation, now, with_usage=bool(asked.get("include_usage"))
    )


def _failure(api: _Api, conversation: Conversation, now: float, fault: FailFault) -> dict[str, Any]:
    if api is RESPONSES_API:
        return responses_wire.failed_object(conversation, now, fault.code, fault.message)
    # The API has no word for it; compatible servers send an error in the place of a completion.
    return error_body(fault.message, fault.code)


def _mismatch_response(error: Exception) -> Response:
    # 400 is final for clients: a script that does not fit must not be retried.
    return JSONResponse(error_body(str(error), "script_mismatch"), status_code=400)


def _status_response(fault: StatusFault) -> Response:
    headers: dict[str, str] = {}
    if fault.retry_after is not None:
        headers["Retry-After"] = f"{fault.retry_after:g}"
    elif fault.retry_after_date is not None:
        # A date has whole seconds; an earlier one would ask for less than the script does.
        moment = math.ceil(time.time() + fault.retry_after_date)
        headers["Retry-After"] = formatdate(moment, usegmt=True)
    return JSONResponse(
        error_body(fault.message, fault.code), status_code=fault.status, headers=headers
    )


async def _json_object(request: Request) -> dict[str, Any]:
    try:
        body: object = await request.json()
    except ValueError:
        raise RequestError("body", "expected JSON") from None
    if not isinstance(body, dict):
        raise RequestError("body", "expected a JSON object")
    return cast("dict[str, Any]", body)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The pieces of a body; faults count in these."""

    media_type: str
    parts: tuple[bytes, ...]


class _NoResponse(Response):
    """Ends the connection without a byte."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hang up."""
        async with _until_disconnected(receive) as gone:
            scope["extensions"][HANG_UP]()
            await gone.wait()


class _ScriptedBody(Response):
    """Sends a body part by part and lets a fault strike between two parts."""

    def __init__(
        self, parts: _Parts, fault: Fault | None, delay: float, gates_dir: Path | None
    ) -> None:
        super().__init__(media_type=parts.media_type)
        # The length is not announced, so that a dropped body is seen as dropped.
        del self.headers["content-length"]
        self._parts = parts.parts
        self._fault = fault
        self._delay = delay
        self._gates_dir = gates_dir

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body and stop early when the client goes away."""
        async with _until_disconnected(receive) as gone:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            for number, part in enumerate(self._parts):
                if not await self._strike(number, gone):
                    return
                if number and self._delay:
                    await _sleep_unless(gone, self._delay)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if await self._strike(len(self._parts), gone):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _strike(self, number: int, gone: asyncio.Event) -> bool:
        """Let the fault act before part `number`; return False when the body ends here."""
        if gone.is_set():
            return False
        match self._fault:
            case DropFault(after=after) if number == min(after, len(self._parts)):
                return False
            case StallFault(after=after, seconds=seconds) if number == after:
                await _sleep_unless(gone, seconds)
            case HoldFault(after=after) as hold if number == after:
                await self._hold(hold, gone)
            case _:
                pass
        return not gone.is_set()

    async def _hold(self, hold: HoldFault, gone: asyncio.Event) -> None:
        if self._gates_dir is None:
            return
        # The files of `dex_agents.testing.FileGate`, written here without importing the SDK.
        self._gates_dir.mkdir(parents=True, exist_ok=True)
        with (self._gates_dir / f"{hold.gate}.reached").open("a") as reached:
            reached.write(f"{os.getpid()}\n")
        released = self._gates_dir / f"{hold.gate}.released"
        deadline = time.monotonic() + hold.seconds
        while not released.exists() and not gone.is_set() and time.monotonic() < deadline:
            await _sleep_unless(gone, GATE_POLL_SECONDS)


@contextlib.asynccontextmanager
async def _until_disconnected(receive: Receive) -> AsyncGenerator[asyncio.Event]:
    gone = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _sleep_unless(gone: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gone.wait(), seconds)
