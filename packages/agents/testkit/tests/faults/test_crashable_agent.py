"""Real kills at named places of an agent that the kit knows by its name only."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from refund_flow import REFUND, THANKS

from dex_agents import AgentSnapshot, MessageRole
from dex_agents.testing import StartProcess
from dex_agents_testkit.faults import (
    PLACES,
    CrashableAgent,
    PlaceNotReachedError,
    Side,
    UnknownPlaceError,
    Victim,
)

pytestmark = pytest.mark.timeout(300)

FLOW = f"{Path(__file__).resolve().parent.parent / 'refund_flow.py'}:build_flow"
UNKNOWN = "It is not known whether"
MakeAgent = Callable[..., CrashableAgent]


async def play(agent: CrashableAgent, session_id: str) -> str:
    """Take one session through a refund and a second turn; return what is known of the refund."""
    await agent.say(session_id, REFUND, message_id=f"{session_id}-1")
    await agent.answer(session_id, approved=True)
    await agent.turn_ended(session_id)
    await agent.say(session_id, THANKS, message_id=f"{session_id}-2")
    return refund_of(await agent.turn_ended(session_id, 2))


def refund_of(snapshot: AgentSnapshot) -> str:
    tools = [message.text for message in snapshot.messages if message.role is MessageRole.TOOL]
    assert tools[0] == "order 7 is paid"
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    assert snapshot.usage.model_calls == 4
    return tools[1]


def refunds(agent: CrashableAgent, session_id: str) -> int:
    return sum(
        entry.name == "tool.before:refund" and entry.details["flow_id"] == session_id
        for entry in agent.arrivals()
    )


async def strike(agent: CrashableAgent, number: int, place: str, victim: Victim) -> None:
    session_id = f"s{number}"
    struck = agent.kill_at(place, victim)
    known = await play(agent, session_id)
    await struck.wait()
    assert refunds(agent, session_id) <= 1, f"{victim} at {place}: the refund ran twice"
    may_be_lost = place.partition(":")[0] not in ("tool.stored", "model.before")
    assert known == "refunded 7" or (may_be_lost and known.startswith(UNKNOWN)), known


FEW = (
    ("half-refunded", Victim.WORKER),
    ("tool.stored:refund", Victim.BOTH),
    ("commit.after:RunModel", Victim.WORKER),
)
ALL = tuple((kind.name, victim) for kind in PLACES for victim in Victim)


async def test_a_refund_runs_once_at_most_wherever_a_process_is_killed(
    crashable_agent: MakeAgent, start: StartProcess
) -> None:
    async with crashable_agent(FLOW, start=start) as agent:
        for number, (place, victim) in enumerate(FEW):
            await strike(agent, number, place, victim)
    assert len(agent.strikes) == len(FEW)
    assert all(strike.has_struck for strike in agent.strikes)
    assert agent.reached["half-refunded"] >= len(FEW)
    assert "kill both at tool.stored:refund" in agent.report()


@pytest.mark.crash
@pytest.mark.timeout(1800)
async def test_every_place_strikes_every_victim(crashable_agent: MakeAgent) -> None:
    # All of them where hundreds of kills are asked for, else a sample.
    wanted = int(os.environ.get("DEX_CRASH_KILLS", "20")) // 3
    chosen = random.Random(1).sample(ALL, min(wanted, len(ALL)))
    async with crashable_agent(FLOW) as agent:
        for number, (place, victim) in enumerate(chosen):
            await strike(agent, number, place, victim)
    assert {strike.place.kind.side for strike in agent.strikes} == set(Side)


async def test_a_paused_worker_goes_on_where_it_stood(crashable_agent: MakeAgent) -> None:
    async with crashable_agent(FLOW) as agent:
        paused = agent.pause_at("tool.before:look_up")
        await agent.say("s", REFUND)
        await paused.struck()
        assert agent.reached["tool.effect:look_up"] == 0
        paused.resume()
        await agent.answer("s", approved=False, rejection_message="no")
        await agent.turn_ended("s")
        assert agent.reached["tool.before:refund"] == 0
        assert agent.reached["tool.before:look_up"] == 1

        with pytest.raises(UnknownPlaceError, match="is no place; known are"):
            agent.kill_at("tool.efect:refund")
        waiting = agent.kill_at("tool.effect:refund")
        with pytest.raises(RuntimeError, match="is not over"):
            agent.kill_at("model.before")
        assert not await waiting.disarm()
        agent.kill_at("model.after", occurrence=99)
        with pytest.raises(PlaceNotReachedError, match="nothing came to model"):
            await agent.__aexit__(None, None, None)
    assert [strike.has_struck for strike in agent.strikes] == [True, False, False]
