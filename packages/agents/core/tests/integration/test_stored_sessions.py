"""What every released version has stored is read, and its sessions go on."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from session_harness import FunctionRunner, RunningSession
from stored_sessions import (
    DATA_FILE,
    LARGE_MESSAGES,
    SESSIONS,
    STORED,
    build_flow,
    is_part_of,
    long_text,
    model,
    plain,
    read_back,
    read_compressed,
    sample_values,
    tool,
)

from dex_agents import AgentSessionFlow, SessionClosedError, ToolCallStatus
from dex_agents._json_form import VALUE_TYPES
from dex_agents.local import SessionApp, open_sessions

VERSIONS = sorted(path.name for path in STORED.iterdir() if (path / "values.jsonl.xz").is_file())
KINDS = {kind.__name__: kind for kind in VALUE_TYPES}


@pytest.fixture(params=VERSIONS)
def corpus(request: pytest.FixtureRequest) -> Path:
    return STORED / str(request.param)


@pytest.mark.requirement("CORE-STORE-13")
def test_every_value_that_a_release_has_stored_reads_as_it_did(corpus: Path) -> None:
    lines = [json.loads(line) for line in read_compressed(corpus / "values.jsonl.xz").splitlines()]
    assert {line["type"] for line in lines} <= set(KINDS)
    for line in lines:
        assert is_part_of(line["reads_as"], read_back(line, KINDS)), line["type"]


@pytest.mark.requirement("CORE-STORE-13")
def test_the_corpus_holds_every_kind_of_value() -> None:
    assert {type(value) for value in sample_values()} == set(VALUE_TYPES)
    newest = read_compressed(STORED / VERSIONS[-1] / "values.jsonl.xz").splitlines()
    assert {json.loads(line)["type"] for line in newest} == set(KINDS)


def unpack(corpus: Path, folder: Path) -> None:
    folder.mkdir()
    packed = (corpus / f"{DATA_FILE}.xz").read_bytes()
    (folder / DATA_FILE).write_bytes(lzma.decompress(packed))


@asynccontextmanager
async def opened(
    corpus: Path, folder: Path, runner: FunctionRunner | None = None
) -> AsyncGenerator[tuple[SessionApp, AgentSessionFlow]]:
    """Open a copy of the stored data file."""
    unpack(corpus, folder)
    flow = build_flow(runner)
    async with open_sessions(flow, data_dir=folder) as app:
        yield app, flow


@pytest.mark.skipif("DEXCLI" in os.environ, reason="the data file is the embedded engine's")
@pytest.mark.requirement("CORE-STORE-13")
async def test_stored_sessions_read_as_they_did_and_go_on(corpus: Path, tmp_path: Path) -> None:
    read_as: dict[str, Any] = json.loads(read_compressed(corpus / "sessions.json.xz"))
    runner = FunctionRunner(model, tool)
    async with opened(corpus, tmp_path / "data", runner) as (app, flow):
        sessions = {name: RunningSession(app, flow, name) for name in SESSIONS}
        for name, session in sessions.items():
            expected = read_as[name]
            first = expected.pop("first_messages")
            page = await session.client.list_agent_messages(name, 0, len(first))
            assert is_part_of(first, plain(page.messages)), name
            # It was at work when it was stored, so it goes on by itself.
            if name != "unfinished":
                assert is_part_of(expected, plain(await session.snapshot())), name
        await check_turns(sessions)
    await check_asking(sessions, runner)


async def check_turns(sessions: dict[str, RunningSession]) -> None:
    """Every session but the closed one takes its next turn, with all its messages."""
    snapshot = await sessions["unfinished"].turn_ended(2)
    assert [m.text for m in snapshot.messages] == [
        "unfinished",
        "echo unfinished after 1 messages",
        "next",
        "echo next after 3 messages",
    ]
    # The id of the first message is still known, so it is not taken again.
    assert await sessions["idle"].client.send_user_message("idle", "hello", message_id="first / id")
    await sessions["idle"].send("more")
    assert (await sessions["idle"].turn_ended(3)).messages[-1].text == "echo more after 6 messages"
    await sessions["large"].send("more")
    large = await sessions["large"].turn_ended(2)
    assert large.messages[-1].text == f"echo more after {LARGE_MESSAGES + 1} messages"
    await sessions["failed"].send("and now?")
    failed = await sessions["failed"].turn_ended(2)
    assert failed.messages[-1].text == "echo and now? after 3 messages"
    assert failed.state is not None
    assert failed.state.last_turn_error is None
    with pytest.raises(SessionClosedError):
        await sessions["closed"].send("hello?")
    assert await sessions["asking"].resolve("c3", True)
    assert await sessions["asking"].resolve("c4", False, "too dear")
    asked = await sessions["asking"].turn_ended(1)
    texts = asked.messages[-1].text.split(" | ")
    assert texts[0] == long_text(100_000)[:60]
    assert texts[1:3] == ["The tool call failed: nothing there", 'pay {"order": 7}']


async def check_asking(sessions: dict[str, RunningSession], runner: FunctionRunner) -> None:
    """The answered calls of the stored turn reached the runner with all that was kept."""
    resumed = next(t for t in runner.turns if t.flow_id == "asking" and t.is_resuming)
    assert resumed.framework_run_state == "a state of the framework"
    look, fail, paid, refused = (resumed.tool_calls[f"c{n}"] for n in range(1, 5))
    assert (look.output, look.framework_payload) == (long_text(100_000), '{"pages": 3}')
    assert (fail.status, fail.framework_payload) == (ToolCallStatus.FAILED, '{"code": 404}')
    assert paid.status is ToolCallStatus.SUCCEEDED
    assert (refused.status, refused.rejection_message) == (ToolCallStatus.REJECTED, "too dear")
    assert [e.tool_call.tool_call_id for e in runner.executions] == ["c3"]
