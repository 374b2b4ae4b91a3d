"""Real crashes of an application's agent at named places, for the application's own tests.

    async def test_a_refund_happens_once(crashable_agent):
        async with crashable_agent("refund_agent:build_flow") as agent:
            agent.kill_at("tool.effect:refund")
            await agent.say("s1", "refund order 7")
            await agent.answer("s1", approved=True)
            await agent.turn_ended("s1")
        assert agent.reached["tool.before:refund"] == 1

`PLACES` lists the names. The agent may be built with any framework: the kit sees its session Flow
only, and finds it by name in the worker process too.
"""

from dex_agents_testkit.faults._agent import CrashableAgent, NoEnginePlacesError, until_served
from dex_agents_testkit.faults._forking import forked_start
from dex_agents_testkit.faults._loading import FlowReferenceError, load_flow
from dex_agents_testkit.faults._places import (
    PLACES,
    FaultPlace,
    Place,
    Side,
    UnknownPlaceError,
    Victim,
)
from dex_agents_testkit.faults._reaching import reach_place
from dex_agents_testkit.faults._strike import Action, PlaceNotReachedError, Strike

__all__ = [
    "PLACES",
    "Action",
    "CrashableAgent",
    "FaultPlace",
    "FlowReferenceError",
    "NoEnginePlacesError",
    "Place",
    "PlaceNotReachedError",
    "Side",
    "Strike",
    "UnknownPlaceError",
    "Victim",
    "forked_start",
    "load_flow",
    "reach_place",
    "until_served",
]
