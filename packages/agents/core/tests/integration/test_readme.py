"""The programs in the README run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentSessionFlow
from dex_agents.local import open_sessions
from dex_agents.testing import create_engine, wait_for_agent_snapshot

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(source: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    namespace["__name__"] = name
    exec(compile(source, str(README), "exec"), namespace)
    return namespace


async def test_the_first_program_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = run(BLOCKS[0], "readme", {})
    await program["main"]()
    assert capsys.readouterr().out == "order 7 is on its way\n"


@pytest.mark.requirement("CORE-KIT-08")
async def test_the_plain_sdk_form_serves_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = run(BLOCKS[1], "readme", run(BLOCKS[0], "readme", {}))
    flow: AgentSessionFlow = program["flow"]
    engine = create_engine(tmp_path / "engine", tmp_path / "logs")
    await engine.start()
    try:
        await program["serve_and_start"](engine.address)
        async with open_sessions(flow, server_address=engine.address) as app:
            snapshot = await wait_for_agent_snapshot(
                app.sessions(), "session-43", lambda s: s if len(s.messages) == 2 else None
            )
    finally:
        await engine.stop()
    assert snapshot.messages[-1].text == "order 8 is on its way"


def test_every_program_of_the_readme_is_run_here() -> None:
    assert len(BLOCKS) == 2
