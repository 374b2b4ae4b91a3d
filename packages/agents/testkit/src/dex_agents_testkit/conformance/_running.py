"""Runs the checks of the manifest, without pytest."""

from __future__ import annotations

import dataclasses
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dex_agents_testkit.conformance._bench import Bench, Check, RunnerFactory, run_check
from dex_agents_testkit.conformance._model_checks import MODEL_CHECKS
from dex_agents_testkit.conformance._played import RequirementBrokenError
from dex_agents_testkit.conformance._report import (
    ConformanceReport,
    RequirementResult,
    Verdict,
)
from dex_agents_testkit.conformance._requirements import (
    REQUIREMENTS,
    Ability,
    Level,
    Requirement,
)
from dex_agents_testkit.conformance._session_checks import SESSION_CHECKS
from dex_agents_testkit.conformance._tool_checks import TOOL_CHECKS

CHECKS: Final[dict[str, Check]] = {
    **MODEL_CHECKS.checks,
    **TOOL_CHECKS.checks,
    **SESSION_CHECKS.checks,
}


async def check_runner(
    make_runner: RunnerFactory, abilities: Iterable[Ability] = (), *, name: str = "the runner"
) -> ConformanceReport:
    """Check a runner against every requirement.

    Args:
        make_runner: Makes a runner whose model and tools are those of a stage.
        abilities: What the adapter declares.
        name: Name for the report.
    """
    results: list[RequirementResult] = []
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for number, requirement in enumerate(REQUIREMENTS):
            own = Path(folder) / str(number)
            results.append(await check_requirement(requirement, make_runner, abilities, own))
    return ConformanceReport(name, tuple(results))


async def check_requirement(
    requirement: Requirement,
    make_runner: RunnerFactory,
    abilities: Iterable[Ability],
    folder: Path,
) -> RequirementResult:
    """Check a runner against one requirement.

    Args:
        requirement: One of the manifest.
        make_runner: Makes a runner whose model and tools are those of a stage.
        abilities: What the adapter declares.
        folder: A folder for this check alone; need not exist.
    """
    bench = Bench(requirement, make_runner, frozenset(abilities), folder)
    missing = sorted(requirement.abilities - bench.abilities)
    own_id = requirement.requirement_id
    if missing:
        return RequirementResult(own_id, Verdict.SKIPPED, f"not declared: {', '.join(missing)}")
    try:
        if requirement.level is Level.SESSION:
            await _run_runner_checks(bench)
        await run_check(CHECKS[own_id], bench)
    except RequirementBrokenError as error:
        broken = error.requirement_id
        verdict = Verdict.FAILED if broken == own_id else Verdict.BLOCKED
        return RequirementResult(own_id, verdict, str(error), broken)
    except Exception:
        return RequirementResult(own_id, Verdict.FAILED, traceback.format_exc(), own_id)
    return RequirementResult(own_id, Verdict.PASSED)


async def _run_runner_checks(bench: Bench) -> None:
    """Run what needs no engine, so that a session only shows what nothing else does."""
    for requirement in REQUIREMENTS:
        if requirement.level is Level.SESSION or not requirement.abilities <= bench.abilities:
            continue
        own = dataclasses.replace(bench, requirement=requirement)
        try:
            await run_check(CHECKS[requirement.requirement_id], own)
        except RequirementBrokenError:
            raise
        except Exception as error:
            raise RequirementBrokenError(requirement.requirement_id, repr(error)) from error
