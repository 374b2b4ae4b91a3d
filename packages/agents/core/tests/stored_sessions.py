"""Sessions that are kept as a release has stored them, and how to make and read them.

`python packages/agents/core/tests/stored_sessions.py --write` makes the folder of the present
version under `stored/`: the data file of an embedded engine, what each session in it must read as,
and one value of every kind in its stored form. It refuses to change a folder that is there, because
what a release has stored never changes: the next version with another stored form gets its own.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import lzma
import random
import string
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

from dex import CodecRegistry, Value, WireKind
from session_harness import FunctionRunner, RunningSession, answer, ask, outcomes, tool_call

from dex_agents import (
    AgentEvent,
    AgentEventType,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentMessagesPage,
    AgentSessionFlow,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentToolOutput,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    AgentUserMessage,
    DeferredToolExecution,
    FrameworkMessage,
    ListAgentMessagesRequest,
    MessageRole,
    PendingTurnFailure,
    ResolveInterruptRequest,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    TurnFailedError,
    agent_codecs,
)
from dex_agents._internal_values import (
    AgentMessageSizes,
    AgentSessionIndex,
    KnownMessageId,
    ModelStepBudget,
    ToolCallEntry,
)
from dex_agents._value_base import StoredValue
from dex_agents.local import open_sessions

STORED: Final = Path(__file__).resolve().parent / "stored"
FLOW_TYPE: Final = "Stored"
DATA_FILE: Final = "dex.sqlite3"
SESSIONS: Final = ("idle", "asking", "failed", "large", "unfinished", "closed")
LARGE_MESSAGES: Final = 620
_WRITE: Final = ToolEffect.NON_IDEMPOTENT_WRITE


# --- the agent ----------------------------------------------------------------------------------


def long_text(length: int, seed: int = 5) -> str:
    """Return text that compresses to about half."""
    return "".join(random.Random(seed).choices(string.ascii_lowercase[:8], k=length))


def model(turn: AgentTurnContext) -> AgentTurnOutcome:
    """Do what the user's message says; the same in the release that stored and in this one."""
    user = next(m for m in reversed(turn.messages) if m.role is MessageRole.USER)
    match user.text:
        case "tools" if turn.is_resuming:
            return answer(" | ".join(text[:60] for text in outcomes(turn)))
        case "tools":
            return ask(
                tool_call("c1", "look", arguments='{"long": true}'),
                tool_call("c2", "fail"),
                tool_call("c3", "pay", _WRITE, '{"order": 7}'),
                tool_call("c4", "pay", _WRITE, '{"order": 8}'),
                run_state="a state of the framework",
            )
        case "fail" if turn.is_resuming:
            raise TurnFailedError("the model has had enough", "Enough")
        case "fail":
            return ask(tool_call("c1", "look"))
        case "grow":
            items = (
                FrameworkMessage(MessageRole.ASSISTANT, f'{{"n": {n}}}', f"item {n}", "writer")
                for n in range(LARGE_MESSAGES - 2)
            )
            return answer("grown", *items)
        case "long item":
            item = json.dumps({"text": long_text(5_000)})
            return answer("done", FrameworkMessage(MessageRole.ASSISTANT, item, "long", "writer"))
        case _:
            return answer(f"echo {user.text} after {len(turn.messages)} messages")


def tool(call: DeferredToolExecution) -> ToolExecutionResult:
    """Run one call; a long output is stored apart from its record."""
    record = call.tool_call
    if record.tool_name == "fail":
        raise ToolExecutionError("nothing there", framework_payload='{"code": 404}')
    if "long" in record.arguments:
        return ToolExecutionResult(long_text(100_000), '{"pages": 3}', AgentUsage(1, 2, 3, 5))
    return ToolExecutionResult(f"{record.tool_name} {record.arguments}")


def build_flow(runner: FunctionRunner | None = None) -> AgentSessionFlow:
    """Build the Flow of the stored sessions."""
    return AgentSessionFlow(runner or FunctionRunner(model, tool), flow_type=FLOW_TYPE)


# --- storing ------------------------------------------------------------------------------------


async def store_sessions(data_dir: Path) -> dict[str, Any]:
    """Run the sessions of the corpus, and return what each of them reads as."""
    reading = asyncio.Event()

    async def waiting(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.messages[-1].text == "unfinished":
            reading.set()
            await asyncio.Event().wait()
        return model(turn)

    flow = build_flow(FunctionRunner(waiting, tool))
    read_as: dict[str, Any] = {}
    async with open_sessions(flow, data_dir=data_dir, drain_timeout=0) as app:
        running = {name: RunningSession(app, flow, name) for name in SESSIONS}
        await running["idle"].client.start_session("idle", "hello", message_id="first / id")
        await running["idle"].turn_ended(1)
        await running["idle"].send("long item")
        await running["idle"].turn_ended(2)
        await running["asking"].start("tools")
        await running["asking"].interrupts(2)
        await running["asking"].until(
            "the calls that need no answer",
            lambda s: sum(call.status.is_final for call in s.tool_calls) == 2,
        )
        await running["failed"].start("fail")
        await running["failed"].turn_ended(1)
        await running["large"].start("grow")
        await running["large"].turn_ended(1)
        await running["closed"].start("hello")
        await running["closed"].turn_ended(1)
        await running["closed"].client.stop_session("closed", "enough")
        await running["unfinished"].start("unfinished")
        await reading.wait()
        await running["unfinished"].client.send_user_message("unfinished", "next", message_id="m2")
        for name, session in running.items():
            read_as[name] = plain(await session.snapshot())
            page = await session.client.list_agent_messages(name, 0, 3)
            read_as[name]["first_messages"] = plain(page.messages)
    return read_as


def plain(value: object) -> Any:
    """Return a value as JSON data, field by field, in the words of this release's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.compare
        }
    if isinstance(value, tuple | list):
        return [plain(item) for item in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, Enum) else value


def is_part_of(stored: object, read: object) -> bool:
    """Whether everything that was stored is read; a later release may add fields of its own."""
    if isinstance(stored, dict) and isinstance(read, dict):
        known = cast("dict[str, object]", read)
        return all(
            key in known and is_part_of(value, known[key])
            for key, value in cast("dict[str, object]", stored).items()
        )
    if isinstance(stored, list) and isinstance(read, list):
        ours, theirs = cast("list[object]", stored), cast("list[object]", read)
        return len(ours) == len(theirs) and all(map(is_part_of, ours, theirs))
    return stored == read


# --- values of every kind -----------------------------------------------------------------------


def sample_values() -> list[StoredValue]:
    """Return values of every kind: with every field set, and with as few as possible."""
    at = datetime(2026, 5, 1, 12, 30, 15, 250, tzinfo=UTC)
    usage = AgentUsage(1, 2, 3, 5, 1, 1)
    state = AgentState(AgentStatus.RUNNING_TOOLS, 3, 7, "turn-4", "Enough: no more")
    item = json.dumps({"text": long_text(3_000)})
    message = AgentMessage(7, "turn-4", MessageRole.USER, "h\u00e9llo", "{}", at, "id-1", "writer")
    record = AgentToolCall(
        "c1", "turn-4", "look", '{"x": 1}', ToolEffect.UNCLASSIFIED, True, 2,
        ToolCallStatus.SUCCEEDED, "out", "why", "no", '{"p": 1}', usage, is_output_cut=True,
    )  # fmt: skip
    interrupt = AgentInterrupt(
        "turn-4~c1", "turn-4", "c1", "look", "{}", ToolEffect.IDEMPOTENT_WRITE, at, at
    )
    entry = ToolCallEntry("c1", 100, 200)
    index = AgentSessionIndex((10, 20), 1, (entry,), 1, 0)
    return [
        AgentEvent(AgentEventType.TEXT_DELTA, "turn-4", "RunModel-2", 1, {"text": "hi"}),
        *(AgentEvent(kind, "turn-1", "RunModel-1", 1) for kind in AgentEventType),
        interrupt,
        AgentInterrupt("turn-1~c", "turn-1", "c", "look", "", ToolEffect.READ, at),
        AgentInterruptResolution(True),
        AgentInterruptResolution(False, "too dear"),
        message,
        AgentMessage(1, "turn-1", MessageRole.ASSISTANT, "", item, at),
        AgentMessage(2, "turn-1", MessageRole.TOOL, "half \ud83d", "{}", at),
        AgentMessageSizes((1, 2, 3)),
        AgentMessagesPage((message,), 7, True, sizes=(99,)),
        AgentMessagesPage(),
        index,
        AgentSessionIndex(),
        AgentSessionStartInput("hello", "id-1"),
        AgentSessionStartInput(),
        AgentSnapshot(state, (message,), (interrupt,), (record,), usage, 2, index=index),
        AgentSnapshot(),
        state,
        *(AgentState(status) for status in AgentStatus),
        record,
        *(
            AgentToolCall("c", "turn-1", "look", "", effect, False, 0, status)
            for effect in ToolEffect
            for status in ToolCallStatus
        ),
        AgentToolOutput("all work " * 8_000, "no play " * 9_000),
        AgentToolOutput(),
        usage,
        AgentUsage(),
        AgentUserMessage("hello", "id-1"),
        AgentUserMessage("hello"),
        KnownMessageId("id-1"),
        ListAgentMessagesRequest(5, 10),
        ModelStepBudget(1, at, 2, 9),
        PendingTurnFailure("no more", "Enough"),
        ResolveInterruptRequest("turn-1~c1", False, "too dear"),
        ToolCallCompleted("c1", "turn-4", 100, 200),
        ToolCallCompleted("c1"),
        entry,
    ]


def stored_form(value: StoredValue) -> dict[str, Any]:
    """Return the stored form of a value, next to what it must read as."""
    encoded = CodecRegistry(agent_codecs()).resolve(type(value)).encode(value)
    return {"type": type(value).__name__, "data": encoded.data, "reads_as": plain(value)}


def read_back(line: Mapping[str, Any], kinds: Mapping[str, type[StoredValue]]) -> object:
    """Read one stored value with this release."""
    codec = CodecRegistry(agent_codecs()).resolve(kinds[line["type"]])
    return plain(codec.decode(Value(WireKind.JSON, line["data"])))


# --- the command --------------------------------------------------------------------------------


def write_corpus(folder: Path) -> None:
    """Make the folder of one version."""
    with tempfile.TemporaryDirectory() as scratch:
        # Else a worker's id begins with the name of its machine, and that is stored too.
        with mock.patch.dict("os.environ", DEX_WORKER_INSTANCE="stored"):
            read_as = asyncio.run(store_sessions(Path(scratch)))
        data = (Path(scratch) / DATA_FILE).read_bytes()
    folder.mkdir(parents=True)
    (folder / f"{DATA_FILE}.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    write_compressed(folder / "sessions.json.xz", json.dumps(read_as))
    lines = "".join(json.dumps(stored_form(value)) + "\n" for value in sample_values())
    write_compressed(folder / "values.jsonl.xz", lines)


def write_compressed(path: Path, text: str) -> None:
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_compressed(path: Path) -> str:
    return lzma.decompress(path.read_bytes()).decode()


def main(arguments: list[str] | None = None) -> int:
    """Make the folder of the present version when asked to."""
    parser = argparse.ArgumentParser(description="Keep sessions as this release stores them.")
    parser.add_argument("--write", action="store_true", help="make the folder of this version")
    options = parser.parse_args(arguments)
    folder = STORED / version("dex-agents")
    if options.write and folder.exists():
        print(f"{folder.name} is there; what a release has stored never changes", file=sys.stderr)
        return 1
    if options.write:
        write_corpus(folder)
    for path in sorted(STORED.glob("*/*")):
        print(f"{path.relative_to(STORED)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
