"""The test stack on a real engine with real worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from refund_agent import build_flow, refund_log

from dex_agents import AgentSnapshot
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    AgentTestStack,
    ChildProcessError,
    FileGate,
    read_step_history,
    wait_for_agent_snapshot,
    wait_until,
)
from dex_agents_testkit import scripted_log, scripted_session_flow, scripted_worker_env

HERE = Path(__file__).resolve().parents[1]

TWO_LOOK_UPS: dict[str, Any] = {
    "tools": {
        "one": {"effect": "read", "gate_before": "in-one"},
        "two": {"effect": "read", "gate_before": "in-two"},
    },
    "turns": [
        {
            "replies": [
                {"tool_calls": [{"id": "c1", "name": "one"}, {"id": "c2", "name": "two"}]},
                {"message": "both done"},
            ]
        },
        {"replies": [{"message": "second answer"}]},
    ],
}


def scripted_stack(tmp_path: Path, script: dict[str, Any], **options: Any) -> AgentTestStack:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    return AgentTestStack(
        tmp_path,
        [scripted_session_flow(path, tmp_path)],
        "dex_agents_testkit.scripted_worker",
        worker_env=scripted_worker_env(path, tmp_path),
        **options,
    )


def turns_done(count: int) -> Any:
    def done(snapshot: AgentSnapshot) -> AgentSnapshot | None:
        return snapshot if snapshot.state and snapshot.state.turn_count >= count else None

    return done


async def test_write_survives_a_worker_kill(tmp_path: Path) -> None:
    flow = build_flow()
    async with AgentTestStack(
        tmp_path,
        [flow],
        "refund_worker",
        worker_cwd=HERE,
        worker_env={"MY_STATE_DIR": str(tmp_path)},
    ) as stack:
        sessions = stack.sessions(flow)
        worker = await stack.start_worker()
        await sessions.start_session("session-1", "refund order 7")
        interrupt = await wait_for_agent_snapshot(
            sessions,
            "session-1",
            lambda snapshot: next(iter(snapshot.pending_interrupts), None),
            description="a pending approval",
        )
        worker.kill()  # SIGKILL while the session waits
        await stack.start_worker()  # replacement Worker
        assert await sessions.resolve_interrupt("session-1", interrupt.interrupt_id, approved=True)
        snapshot = await wait_for_agent_snapshot(sessions, "session-1", turns_done(1))
        history = await stack.read_step_history("session-1")

    executed = [entry.step_type for entry in history if entry.event_type == EXECUTE_COMPLETED_EVENT]
    assert executed == [
        "StartAgentSession",
        "RunModel",
        "AwaitToolApproval",
        "CallSingleAttemptTool",
        "ResumeTurn",
        "RunModel",
    ]
    assert snapshot.messages[-1].text == "Order 7 is refunded."
    assert refund_log(tmp_path).count("refund") == 1


async def test_two_gates_reached_at_once_show_parallel_steps(tmp_path: Path) -> None:
    gates = [FileGate(tmp_path, "in-one"), FileGate(tmp_path, "in-two")]
    async with scripted_stack(tmp_path, TWO_LOOK_UPS) as stack:
        worker = await stack.start_worker()
        await stack.sessions().start_session("s", "go")
        reached = [await gate.wait_until_reached() for gate in gates]
        for gate in gates:
            gate.release()
        await wait_for_agent_snapshot(stack.sessions(), "s", turns_done(1))

    assert reached == [worker.pid, worker.pid]


async def test_a_worker_killed_at_a_gate_leaves_the_call_to_the_next_one(tmp_path: Path) -> None:
    gates = [FileGate(tmp_path, "in-one"), FileGate(tmp_path, "in-two")]
    async with scripted_stack(tmp_path, TWO_LOOK_UPS) as stack:
        first = await stack.start_worker()
        await stack.sessions().start_session("s", "go")
        for gate in gates:
            await gate.wait_until_reached()
        first.kill()
        second = await stack.start_worker()
        for gate in gates:
            assert await gate.wait_until_reached(arrivals=2) == second.pid
            gate.release()
        await wait_for_agent_snapshot(stack.sessions(), "s", turns_done(1))
        history = await stack.read_step_history("s")

    attempts = {
        entry.step_input: (entry.final_attempt, bool(entry.last_failure))
        for entry in history
        if entry.step_type == "CallTool"
    }
    assert attempts == {"c1": (2, True), "c2": (2, True)}
    assert scripted_log(tmp_path).count("one") == 1


async def test_an_engine_comes_back_at_the_same_address_with_its_sessions(tmp_path: Path) -> None:
    for name in ("in-one", "in-two"):
        FileGate(tmp_path, name).release()
    async with scripted_stack(tmp_path, TWO_LOOK_UPS) as stack:
        address = stack.server_address
        await stack.start_worker()
        sessions = stack.sessions()
        await sessions.start_session("s", "go")
        await wait_for_agent_snapshot(sessions, "s", turns_done(1))
        stack.engine.kill()
        assert stack.engine.process.returncode == -9
        await stack.engine.restart()
        assert stack.server_address == address
        assert await sessions.send_user_message("s", "again")
        snapshot = await wait_for_agent_snapshot(sessions, "s", turns_done(2))

    assert snapshot.messages[-1].text == "second answer"
    assert len(stack.workers) == 1


async def test_a_worker_that_cannot_start_shows_why(tmp_path: Path) -> None:
    async with AgentTestStack(tmp_path, [build_flow()], "no_such_module") as stack:
        with pytest.raises(ChildProcessError, match="No module named no_such_module"):
            await stack.start_worker()


async def test_a_failing_test_gets_the_output_of_its_processes(tmp_path: Path) -> None:
    stack = AgentTestStack(tmp_path, [build_flow()], "no_such_module")

    async def fail() -> None:
        async with stack:
            await stack.start_worker()

    with pytest.raises(ChildProcessError) as caught:
        await fail()
    assert any("worker-1" in note for note in caught.value.__notes__)


async def test_an_unknown_session_has_no_history(tmp_path: Path) -> None:
    async with AgentTestStack(tmp_path, [build_flow()], "refund_worker") as stack:
        with pytest.raises(LookupError, match="no session 'nobody'"):
            await stack.read_step_history("nobody")
    with pytest.raises(ConnectionError):
        await read_step_history(stack.server_address, "nobody")


async def test_a_worker_module_run_by_hand_says_who_starts_it() -> None:
    environment = {name: value for name, value in os.environ.items() if "DEX_AGENTS" not in name}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / "refund_worker.py",
        env=environment,
        stderr=subprocess.PIPE,
    )
    _, errors = await child.communicate()

    assert child.returncode != 0
    assert b"for worker processes that AgentTestStack starts" in errors


async def test_nothing_outlives_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from dex_agents.testing import AgentTestStack\n"
        "from refund_agent import build_flow\n"
        "async def main():\n"
        "    async with AgentTestStack(sys.argv[1], [build_flow()], 'refund_worker') as stack:\n"
        "        worker = await stack.start_worker()\n"
        "        print(worker.pid, stack.engine.process.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), cwd=HERE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    children = [int(pid) for pid in (await run.stdout.readline()).split()]
    assert len(children) == 2
    run.kill()
    await run.wait()

    await wait_until("the end of its processes", lambda: not any(map(is_alive, children)))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return True


FAKE_DEXCLI = """#!{python}
import json, os, subprocess, sys
assert sys.argv[1:5] == ["dev", "--engine", "zd", "--open=false"], sys.argv
assert os.path.exists(os.environ["DEX_SERVER_ZD_BINARY"])
port = sys.argv[sys.argv.index("--dex-port") + 1]
data = os.path.join(os.environ["HOME"], ".dex", "zd", port)
command = [sys.executable, "-m", "dex_embedded", "dev", "--json"]
engine = subprocess.Popen(
    [*command, "--data-dir", data, "--port", port], stdout=subprocess.PIPE, text=True
)
print("\\nDex development environment is ready\\nDex Web:       http://127.0.0.1:8802")
print("Dex Server:    " + json.loads(engine.stdout.readline())["address"], flush=True)
sys.exit(engine.wait())
"""


async def test_the_engine_of_dexcli_is_used_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dexcli = tmp_path / "bin" / "dexcli"
    dexcli.parent.mkdir()
    dexcli.write_text(FAKE_DEXCLI.format(python=sys.executable))
    dexcli.chmod(0o755)
    monkeypatch.setenv("DEXCLI", str(dexcli))
    with pytest.raises(FileNotFoundError, match="dex-server-zd does not exist"):
        AgentTestStack(tmp_path, [build_flow()], "refund_worker")
    dexcli.with_name("dex-server-zd").touch()

    async with AgentTestStack(tmp_path, [build_flow()], "refund_worker", worker_cwd=HERE) as stack:
        await stack.start_worker()
        await stack.sessions().start_session("s", "refund order 7")
        await wait_for_agent_snapshot(
            stack.sessions(), "s", lambda snapshot: snapshot.pending_interrupts
        )
        stack.engine.kill()
        await stack.engine.restart()
        assert (await stack.read_step_history("s"))[0].step_type == "StartAgentSession"
