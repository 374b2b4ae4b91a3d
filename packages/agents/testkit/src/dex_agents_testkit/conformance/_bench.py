"""What a check has at hand, and how one is run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from dex_agents.runner import AgentFrameworkRunner, ToolPolicy
from dex_agents.values import ToolEffect
from dex_agents_testkit.conformance._played import (
    PlayedSession,
    RequirementBrokenError,
    require,
)
from dex_agents_testkit.conformance._requirements import Ability, Level, Requirement
from dex_agents_testkit.conformance._scenario import ModelReply, Scenario, ScenarioTool
from dex_agents_testkit.conformance._stage import Stage, Witness

RunnerFactory: TypeAlias = Callable[[Stage], AgentFrameworkRunner]

_DEADLINES: Final = {Level.RUNNER: 60.0, Level.SESSION: 150.0}


@dataclass(frozen=True)
class Bench:
    """What a check has at hand.

    Attributes:
        requirement: What is checked.
        make_runner: Makes a runner on a stage.
        abilities: What the adapter declares.
        folder: An empty folder for a session's engine.
    """

    requirement: Requirement
    make_runner: RunnerFactory
    abilities: frozenset[Ability]
    folder: Path

    def require(self, holds: object, message: str) -> None:
        """Raise unless something holds that the requirement says.

        Raises:
            RequirementBrokenError: It does not hold.
        """
        require(holds, self.requirement.requirement_id, message)

    def can(self, ability: Ability) -> bool:
        """Whether the adapter declares an ability."""
        return ability in self.abilities

    def play(
        self,
        *turns: tuple[ModelReply, ...],
        tools: tuple[ScenarioTool, ...] = (),
        policies: Mapping[str, ToolPolicy] | None = None,
        default_effect: ToolEffect = ToolEffect.READ,
        is_moving: bool = False,
    ) -> PlayedSession:
        """Set up a scenario and a session that plays it."""
        return PlayedSession(
            Witness(Scenario(turns=turns, tools=tools)),
            self.make_runner,
            policies or {},
            default_effect,
            is_moving,
        )


Check: TypeAlias = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True)
class CheckTable:
    """The checks, by the id of the requirement that each one proves."""

    checks: dict[str, Check] = field(default_factory=dict[str, Check])

    def proves(self, requirement_id: str) -> Callable[[Check], Check]:
        """Register the decorated function as the check of a requirement.

        Raises:
            ValueError: It has one already.
        """

        def register(check: Check) -> Check:
            if requirement_id in self.checks:
                raise ValueError(f"{requirement_id} has two checks")
            self.checks[requirement_id] = check
            return check

        return register


async def run_check(check: Check, bench: Bench) -> None:
    """Run a check within a deadline.

    Raises:
        RequirementBrokenError: A requirement is broken; often, but not always, its own.
        Exception: What the runner raised where it should not.
    """
    deadline = asyncio.timeout(_DEADLINES[bench.requirement.level])
    try:
        async with deadline:
            await check(bench)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise RequirementBrokenError(
            bench.requirement.requirement_id, "the check did not end in time"
        ) from None
