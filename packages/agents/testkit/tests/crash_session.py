"""One session that a crash strikes once, and what must hold whatever was killed where.

The session has two turns. In the first one the model looks an order up (a read), opens a case (an
idempotent write) next to a refund that needs approval (a write that must not happen twice), and
answers; in the second it answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dex import DexServiceError

from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSnapshot,
    MessageRole,
    SessionNotFoundError,
)
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    AgentTestStack,
    FileGate,
    InvocationLog,
    StartProcess,
    StepHistoryEntry,
    WorkerProcess,
    wait_for_agent_snapshot,
    wait_until,
)
from dex_agents_testkit import scripted_log, scripted_session_flow, scripted_worker_env

T = TypeVar("T")

SCRIPT: dict[str, Any] = {
    "tools": {
        "look_up": {"effect": "read", "output": "order $order is paid"},
        "open_case": {"effect": "idempotent_write", "output": "case for $order"},
        "refund": {"effect": "non_idempotent_write", "output": "refunded $order"},
    },
    "turns": [
        {
            "user": "refund order 7",
            "replies": [
                {
                    "text": "Looking.",
                    "tool_calls": [{"id": "c1", "name": "look_up", "arguments": {"order": "7"}}],
                    "usage": {"input_tokens": 10, "output_tokens": 1},
                },
                {
                    "tool_calls": [
                        {"id": "c2", "name": "open_case", "arguments": {"order": "7"}},
                        {"id": "c3", "name": "refund", "arguments": {"order": "7"}},
                    ],
                    "usage": {"input_tokens": 20, "output_tokens": 2},
                },
                {"message": "All done.", "usage": {"input_tokens": 30, "output_tokens": 3}},
            ],
        },
        {
            "user": "thank you",
            "replies": [
                {"message": "You are welcome.", "usage": {"input_tokens": 40, "output_tokens": 4}}
            ],
        },
    ],
}
MODEL_CALLS = 4
TOTAL_TOKENS = 110
UNKNOWN = "It is not known whether"


def script_with_gates(**gates: str) -> dict[str, Any]:
    """Return the script with gates: `tool__gate_before="name"` or `reply_1="name"`."""
    script = json.loads(json.dumps(SCRIPT))
    for place, gate in gates.items():
        if place.startswith("reply_"):
            replies = [reply for turn in script["turns"] for reply in turn["replies"]]
            replies[int(place.removeprefix("reply_")) - 1]["gate"] = gate
        else:
            tool, _, field = place.partition("__")
            script["tools"][tool][field] = gate
    return script


@dataclass
class Crashing:
    """A stack with a session that is driven to its end while something is killed.

    Attributes:
        stack: Engine and workers.
        state_dir: Folder of gates and call log.
        fault_log: Where the engine notes every fault place it reaches.
        session_id: The session.
        interval: Seconds between two looks at it.
    """

    stack: AgentTestStack
    state_dir: Path
    fault_log: Path
    session_id: str = "s"
    interval: float = 0.05

    @property
    def sessions(self) -> AgentSessionClient:
        return self.stack.sessions()

    @property
    def log(self) -> InvocationLog:
        return scripted_log(self.state_dir)

    @property
    def worker(self) -> WorkerProcess:
        return self.stack.workers[-1]

    def gate(self, name: str) -> FileGate:
        return FileGate(self.state_dir, name)

    async def drive(self) -> AgentSnapshot:
        """Take the session to the end of its second turn, over whatever downtime there is."""
        await self.until_served(
            lambda: self.sessions.start_session(
                self.session_id, "refund order 7", message_id=f"{self.session_id}-1"
            )
        )
        await self.approve()
        await self.wait_for_turn(1)
        await self.until_served(
            lambda: self.sessions.send_user_message(
                self.session_id, "thank you", message_id=f"{self.session_id}-2"
            )
        )
        return await self.wait_for_turn(2)

    async def approve(self) -> None:
        """Answer the one question of the session, as often as it takes."""
        interrupt = await self.wait_for_interrupt()

        async def answered() -> bool:
            with contextlib.suppress(DexServiceError):
                await self.sessions.resolve_interrupt(self.session_id, interrupt, approved=True)
            snapshot = await self.sessions.get_agent_snapshot(self.session_id)
            return not snapshot.pending_interrupts

        await wait_until(
            "the answer to be taken",
            lambda: asyncio.wait_for(answered(), 5),
            timeout=120,
            interval=self.interval,
            ignore=(DexServiceError, TimeoutError),
        )

    async def wait_for_interrupt(self) -> str:
        interrupt = await wait_for_agent_snapshot(
            self.sessions,
            self.session_id,
            lambda snapshot: next(iter(snapshot.pending_interrupts), None),
            description="a pending approval",
            timeout=120,
            interval=self.interval,
        )
        return interrupt.interrupt_id

    async def wait_for_turn(self, number: int) -> AgentSnapshot:
        return await wait_for_agent_snapshot(
            self.sessions,
            self.session_id,
            lambda snapshot: (
                snapshot if snapshot.state and snapshot.state.turn_count >= number else None
            ),
            description=f"the end of turn {number}",
            timeout=120,
            interval=self.interval,
        )

    async def until_served(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call again and again until the engine has answered it."""

        async def once() -> tuple[T]:
            return (await asyncio.wait_for(call(), 15),)

        served = await wait_until(
            "an answer of the engine",
            once,
            timeout=120,
            interval=self.interval,
            ignore=(DexServiceError, TimeoutError, SessionNotFoundError),
        )
        return served[0]

    async def replace_worker(self) -> None:
        """Kill the newest worker and start another."""
        self.worker.kill()
        await self.stack.start_worker()

    async def restart_engine(self) -> None:
        """Kill the engine, if it still lives, and start it again without any fault."""
        self.stack.engine.kill()
        await self.stack.engine.restart({"DEX_EMBEDDED_FAULT": ""})

    async def check(self, snapshot: AgentSnapshot, *, may_be_unknown: bool) -> None:
        """Assert what must hold after one kill.

        Args:
            snapshot: The session at its end.
            may_be_unknown: Whether the kill may have fallen between the hand-out of the refund and
                the commit of its result. Nobody can know then whether it ran.
        """
        page = await self.sessions.list_agent_messages(self.session_id)
        check_messages(page.messages)
        self.check_effects(page.messages, may_be_unknown=may_be_unknown)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None
        assert (snapshot.usage.model_calls, snapshot.usage.total_tokens) == (
            MODEL_CALLS,
            TOTAL_TOKENS,
        )
        self.check_model_calls()
        check_history(await self.stack.read_step_history(self.session_id))

    def check_effects(self, messages: tuple[AgentMessage, ...], *, may_be_unknown: bool) -> None:
        """Compare what the session believes with what the tools really did."""
        results = [message.text for message in messages if message.role is MessageRole.TOOL]
        refunds = self._calls("refund")
        if results[2].startswith(UNKNOWN):
            assert may_be_unknown, "the outcome of the refund was lost"
            assert len(refunds) <= 1, "the refund ran twice"
        else:
            assert results[2] == "refunded 7"
            assert len(refunds) == 1, f"the refund ran {len(refunds)} times"
        assert results[:2] == ["order 7 is paid", "case for 7"]
        for tool, key in (("look_up", "c1"), ("open_case", "c2"), ("refund", "c3")):
            keys = {call["idempotency_key"] for call in self._calls(tool)}
            assert keys <= {f"{self.session_id}/turn-1/{key}"}
        for tool in ("look_up", "open_case"):
            assert 1 <= len(self._calls(tool)) <= 2, f"{tool} ran {len(self._calls(tool))} times"

    def check_model_calls(self) -> None:
        """One kill repeats at most the one model call that was running, with the same input."""
        inputs: dict[tuple[str, int], list[Any]] = {}
        for call in self._calls("run_model_step"):
            place = (call["turn_id"], call["reply"])
            inputs.setdefault(place, []).append([call["messages"], call["tool_calls"]])
        assert sorted(inputs) == [("turn-1", 1), ("turn-1", 2), ("turn-1", 3), ("turn-2", 1)]
        assert sum(map(len, inputs.values())) <= MODEL_CALLS + 1
        for given in inputs.values():
            assert all(other == given[0] for other in given)

    def _calls(self, name: str) -> list[Any]:
        return [
            entry.details
            for entry in self.log.entries(name)
            if entry.details["flow_id"] == self.session_id
        ]


def check_messages(messages: tuple[AgentMessage, ...]) -> None:
    """Every message is there once, in order, numbered from 1."""
    assert [message.sequence for message in messages] == list(range(1, len(messages) + 1))
    told = [(message.turn_id, message.role.value, message.text) for message in messages]
    told[7] = (*told[7][:2], "")
    assert told == [
        ("turn-1", "user", "refund order 7"),
        ("turn-1", "assistant", "Looking."),
        ("turn-1", "assistant", ""),
        ("turn-1", "tool", "order 7 is paid"),
        ("turn-1", "assistant", ""),
        ("turn-1", "assistant", ""),
        ("turn-1", "tool", "case for 7"),
        ("turn-1", "tool", ""),
        ("turn-1", "assistant", "All done."),
        ("turn-2", "user", "thank you"),
        ("turn-2", "assistant", "You are welcome."),
    ]


def check_history(history: list[StepHistoryEntry]) -> None:
    """Every Step of the session was completed exactly once."""
    done = Counter(
        entry.step_type for entry in history if entry.event_type == EXECUTE_COMPLETED_EVENT
    )
    # A refund whose outcome is unknown ends in its failure route instead.
    refunds = done.pop("CallSingleAttemptTool", 0) + done.pop("RecordToolOutcomeUnknown", 0)
    # It may find a result missing and wait again.
    resumed = done.pop("ResumeTurn")
    # A worker that lacks a part of the history hands the Step on to load it, without a model call.
    model_steps = done.pop("RunModel")
    assert refunds == 1
    assert resumed >= 2
    assert MODEL_CALLS <= model_steps <= MODEL_CALLS + 3
    assert done == {
        "StartAgentSession": 1,
        "CallTool": 2,
        "AwaitToolApproval": 1,
        "AwaitUserMessage": 1,
    }


def _write_script(folder: Path, script: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return path


@contextlib.asynccontextmanager
async def crashing_session(
    tmp_path: Path, start: StartProcess, script: dict[str, Any] = SCRIPT
) -> AsyncGenerator[Crashing]:
    """Open a stack with one worker for a session that has not started yet."""
    path, state_dir = _write_script(tmp_path, script), tmp_path / "state"
    fault_log = tmp_path / "faults.log"
    async with AgentTestStack(
        tmp_path,
        [scripted_session_flow(path, state_dir)],
        "dex_agents_testkit.scripted_worker",
        worker_env=scripted_worker_env(path, state_dir),
        engine_env={"DEX_EMBEDDED_FAULT_LOG": str(fault_log)},
        start=start,
    ) as stack:
        await stack.start_worker()
        yield Crashing(stack, state_dir, fault_log)


def read_places(fault_log: Path) -> list[str]:
    """Return the fault places that the engine has reached, in order."""
    try:
        return [line.split()[0] for line in fault_log.read_text().splitlines()]
    except FileNotFoundError:
        return []


def may_hide_refund(place: str) -> bool:
    """Whether a kill at this arrival may hide if the refund ran.

    The Step commits once, its result: what it says before the tool runs has nothing to keep. Before
    the hand-out nothing has run, and after the commit the result is known.
    """
    name, _, subject = place.partition(":")
    is_certain = name in ("handout.before", "commit.after")
    return subject == "CallSingleAttemptTool" and not is_certain
