"""Random histories of any agent, with crashes, against what must hold of every session.

    async def test_my_agent_keeps_its_invariants(tmp_path):
        machine = SessionMachine("refund_agent:build_flow", st.sampled_from(["refund 7", "hello"]))
        report = await machine.run(tmp_path, histories=30)
        report.require(least=1)

Needs `hypothesis`, which draws the histories.
"""

from dex_agents_testkit.histories._actions import (
    DEFAULT_PLACES,
    Action,
    Answer,
    AnswerAgain,
    History,
    Kill,
    Look,
    Restart,
    Say,
    SayAgain,
    Settle,
    draw_histories,
)
from dex_agents_testkit.histories._invariants import (
    INVARIANTS,
    Invariant,
    InvariantBrokenError,
)
from dex_agents_testkit.histories._machine import (
    HISTORY_VARIABLE,
    HistoriesReport,
    HistoryFailedError,
    SessionMachine,
)
from dex_agents_testkit.histories._witness import StepWitness, TurnWitness, Witness

__all__ = [
    "DEFAULT_PLACES",
    "HISTORY_VARIABLE",
    "INVARIANTS",
    "Action",
    "Answer",
    "AnswerAgain",
    "HistoriesReport",
    "History",
    "HistoryFailedError",
    "Invariant",
    "InvariantBrokenError",
    "Kill",
    "Look",
    "Restart",
    "Say",
    "SayAgain",
    "SessionMachine",
    "Settle",
    "StepWitness",
    "TurnWitness",
    "Witness",
    "draw_histories",
]
