"""A conformance suite for adapters: does a runner keep the contract of a session?

The requirements are data (`REQUIREMENTS`). An adapter's test subclasses `AdapterConformance`:

    class TestMyAdapter(AdapterConformance):
        abilities = frozenset({Ability.STREAMING, Ability.USAGE})

        def make_runner(self, stage: Stage) -> AgentFrameworkRunner:
            return MyRunner(MyAgent(model=MyModelDouble(stage), tools=my_tools(stage)))

The model double asks `stage.call_model` for its answers, and the tools run by `stage.run_tool`;
what the scenario holds is in `stage.scenario`. `check_runner` does the same without pytest and
returns the report as data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dex_agents_testkit.conformance._played import RequirementBrokenError
from dex_agents_testkit.conformance._report import ConformanceReport, RequirementResult, Verdict
from dex_agents_testkit.conformance._requirements import (
    REQUIREMENTS,
    Ability,
    Level,
    Requirement,
)
from dex_agents_testkit.conformance._running import check_requirement, check_runner
from dex_agents_testkit.conformance._scenario import (
    ModelFailure,
    ModelReply,
    ModelToolCall,
    Scenario,
    ScenarioTool,
)
from dex_agents_testkit.conformance._stage import Stage

if TYPE_CHECKING:
    from dex_agents_testkit.conformance._suite import AdapterConformance

__all__ = [
    "REQUIREMENTS",
    "Ability",
    "AdapterConformance",
    "ConformanceReport",
    "Level",
    "ModelFailure",
    "ModelReply",
    "ModelToolCall",
    "Requirement",
    "RequirementBrokenError",
    "RequirementResult",
    "Scenario",
    "ScenarioTool",
    "Stage",
    "Verdict",
    "check_requirement",
    "check_runner",
]


def __getattr__(name: str) -> Any:
    if name != "AdapterConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The one name that needs pytest, which is no dependency of the kit.
    from dex_agents_testkit.conformance._suite import AdapterConformance

    return AdapterConformance
