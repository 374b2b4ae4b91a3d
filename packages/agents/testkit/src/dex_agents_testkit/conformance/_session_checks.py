"""Checks in a session on the embedded engine, in this process.

They come last and run the others first: whatever a call of the runner alone can show is reported
there, by its own name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentSnapshot,
    ToolEffect,
    ToolPolicy,
)
from dex_agents.local import open_sessions
from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_testkit.conformance._bench import Bench, CheckTable
from dex_agents_testkit.conformance._model_checks import ANSWER, ASK, ASK_AGAIN, FIND, NOTE, USER
from dex_agents_testkit.conformance._played import require
from dex_agents_testkit.conformance._requirements import Ability
from dex_agents_testkit.conformance._scenario import ModelReply, Scenario
from dex_agents_testkit.conformance._stage import Witness

SESSION_CHECKS = CheckTable()

_SESSION = "conformance"
_READ = ToolPolicy(ToolEffect.READ, requires_approval=False)
_ASKS = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)


@SESSION_CHECKS.proves("session.turn")
async def _(bench: Bench) -> None:
    witness = Witness(Scenario(turns=((ASK, ASK_AGAIN, ANSWER),), tools=(FIND, NOTE)))
    async with _serving(bench, witness, find=_READ, note=_READ) as sessions:
        await sessions.start_session(_SESSION, USER)
        snapshot = await _turn_ended(sessions, 1)
    runs = [(run.tool_name, run.key) for run in witness.tool_runs]
    bench.require(runs == [("find", "key-elder"), ("note", "key-fern")], f"the tools ran {runs}")
    texts = [message.text for message in snapshot.messages]
    bench.require(any("answer-birch" in text for text in texts), f"stored is {texts}")
    _check_model_calls(bench, witness, snapshot, 3)


@SESSION_CHECKS.proves("session.approval")
async def _(bench: Bench) -> None:
    end = ModelReply(text="answer-hazel")
    witness = Witness(Scenario(turns=((ASK, ANSWER), (ASK_AGAIN, end)), tools=(FIND, NOTE)))
    async with _serving(bench, witness, find=_ASKS, note=_ASKS) as sessions:
        await sessions.start_session(_SESSION, USER)
        await _answer(sessions, approved=False)
        await _turn_ended(sessions, 1)
        bench.require(not witness.tool_runs, f"a rejected call ran: {witness.tool_runs}")
        await sessions.send_user_message(_SESSION, "user-says-iris")
        await _answer(sessions, approved=True)
        snapshot = await _turn_ended(sessions, 2)
    runs = [(run.tool_name, run.key) for run in witness.tool_runs]
    bench.require(runs == [("note", "key-fern")], f"one call was approved; the tools ran {runs}")
    _check_model_calls(bench, witness, snapshot, 4)


@SESSION_CHECKS.proves("session.restart")
async def _(bench: Bench) -> None:
    witness = Witness(Scenario(turns=((ASK, ASK_AGAIN, ANSWER),), tools=(FIND, NOTE)))
    async with _serving(bench, witness, find=_READ, note=_ASKS) as sessions:
        await sessions.start_session(_SESSION, USER)
        await _wait(sessions, lambda snapshot: bool(snapshot.pending_interrupts), "an approval")
    async with _serving(bench, witness, find=_READ, note=_ASKS) as sessions:
        await _answer(sessions, approved=True)
        snapshot = await _turn_ended(sessions, 1)
    runs = [(run.tool_name, run.key) for run in witness.tool_runs]
    bench.require(runs == [("find", "key-elder"), ("note", "key-fern")], f"the tools ran {runs}")
    _check_model_calls(bench, witness, snapshot, 3)


@asynccontextmanager
async def _serving(
    bench: Bench, witness: Witness, **policies: ToolPolicy
) -> AsyncGenerator[AgentSessionClient]:
    """Serve the session from a new runner, over the same data each time."""
    flow = AgentSessionFlow(
        witness.watch(bench.make_runner(witness.stage)),
        flow_type="Conformance",
        options=AgentSessionOptions(tool_policies=policies),
    )
    async with open_sessions(flow, data_dir=bench.folder / "engine") as app:
        yield app.sessions()


async def _answer(sessions: AgentSessionClient, *, approved: bool) -> None:
    snapshot = await _wait(sessions, lambda found: bool(found.pending_interrupts), "an approval")
    interrupt = snapshot.pending_interrupts[0]
    await sessions.resolve_interrupt(_SESSION, interrupt.interrupt_id, approved=approved)


async def _turn_ended(sessions: AgentSessionClient, count: int) -> AgentSnapshot:
    return await _wait(
        sessions,
        lambda found: found.state is not None and found.state.turn_count >= count,
        f"the end of turn {count}",
    )


async def _wait(
    sessions: AgentSessionClient, holds: Callable[[AgentSnapshot], bool], description: str
) -> AgentSnapshot:
    """Wait until the session has come so far, or a turn of it has failed."""

    def probe(snapshot: AgentSnapshot) -> AgentSnapshot | None:
        failed = snapshot.state is not None and snapshot.state.last_turn_error
        return snapshot if failed or holds(snapshot) else None

    found = await wait_for_agent_snapshot(sessions, _SESSION, probe, description=description)
    error = found.state.last_turn_error if found.state is not None else None
    # Every turn of these scenarios must come to its end, so this is one rule wherever it shows.
    require(error is None, "session.turn", f"the turn failed: {error}")
    return found


def _check_model_calls(bench: Bench, witness: Witness, snapshot: AgentSnapshot, count: int) -> None:
    calls = sum(len(step.model_calls) for step in witness.model_steps)
    bench.require(calls == count, f"{count} model calls are needed; {calls} were made")
    if Ability.USAGE in bench.abilities:
        told = snapshot.usage.model_calls
        bench.require(told == count, f"the session counts {told} model calls, not {count}")
    sequences = [message.sequence for message in snapshot.messages]
    bench.require(sequences == list(range(1, len(sequences) + 1)), f"stored sequences: {sequences}")
