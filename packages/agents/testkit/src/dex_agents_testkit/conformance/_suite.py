"""The suite as a pytest class."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import pytest

from dex_agents.runner import AgentFrameworkRunner
from dex_agents_testkit.conformance._report import Verdict
from dex_agents_testkit.conformance._requirements import REQUIREMENTS, Ability, Requirement
from dex_agents_testkit.conformance._running import check_requirement
from dex_agents_testkit.conformance._stage import Stage

#: Name of the pytest property that carries a result to the report.
RESULT_PROPERTY: Final = "dex_agents_conformance"


class AdapterConformance:
    """Tests an adapter; subclass it, declare abilities, and say how a runner is made.

    Every requirement is one test, `test_requirement[<id>]`. They need no asyncio plugin.

    Attributes:
        abilities: What the adapter can do beyond the minimum; what needs more is skipped.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset()

    def make_runner(self, stage: Stage) -> AgentFrameworkRunner:
        """Make a runner whose agent has the tools of `stage.scenario` and asks `stage` for answers.

        Called for every session of a check, and again where a worker restarts.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_runner")

    @pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda rule: rule.requirement_id)
    def test_requirement(
        self,
        requirement: Requirement,
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        """The adapter keeps the requirement."""
        result = asyncio.run(
            check_requirement(requirement, self.make_runner, self.abilities, tmp_path)
        )
        # Plain text by name: it travels between processes when tests run in parallel.
        record_property(RESULT_PROPERTY, {"adapter": type(self).__name__, **result.to_dict()})
        match result.verdict:
            case Verdict.PASSED:
                return
            case Verdict.SKIPPED:
                pytest.skip(result.detail)
            case Verdict.FAILED:
                pytest.fail(f"{requirement.rule}\n{result.detail}", pytrace=False)
            case Verdict.BLOCKED:
                pytest.fail(f"not checked, since {result.detail}", pytrace=False)
