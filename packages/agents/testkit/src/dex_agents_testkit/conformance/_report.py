"""What came of each requirement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What came of one requirement.

    `BLOCKED` means that the check met another requirement that is broken, so nothing is known of
    its own.
    """

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class RequirementResult:
    """What came of one requirement.

    Attributes:
        requirement_id: The requirement.
        verdict: What came of it.
        detail: What was seen, or which ability is missing; empty if it passed.
        broken_id: The requirement that is broken: its own, or the one that blocked it.
    """

    requirement_id: str
    verdict: Verdict
    detail: str = ""
    broken_id: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Return the result as plain text by name."""
        return {
            "requirement_id": self.requirement_id,
            "verdict": self.verdict.value,
            "detail": self.detail,
            "broken_id": self.broken_id or "",
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> RequirementResult:
        """Read what `to_dict` returned."""
        return cls(
            values["requirement_id"],
            Verdict(values["verdict"]),
            values["detail"],
            values["broken_id"] or None,
        )


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of one runner.

    Attributes:
        runner: Name of what was checked.
        results: One result per requirement, in the order of the manifest.
    """

    runner: str
    results: tuple[RequirementResult, ...]

    @property
    def broken(self) -> frozenset[str]:
        """Ids of the requirements that the runner breaks."""
        return frozenset(r.broken_id for r in self.results if r.broken_id is not None)

    def having(self, verdict: Verdict) -> tuple[RequirementResult, ...]:
        """Return the results with one verdict."""
        return tuple(result for result in self.results if result.verdict is verdict)

    def render(self) -> str:
        """Return the report as text: a line per requirement, and the counts."""
        width = max((len(result.requirement_id) for result in self.results), default=0)
        lines = [f"conformance of {self.runner}"]
        for result in self.results:
            line = f"  {result.requirement_id:<{width}}  {result.verdict.value:<7}"
            detail = " ".join(result.detail.split())
            lines.append(f"{line}  {detail}".rstrip())
        counts = ", ".join(f"{len(self.having(verdict))} {verdict.value}" for verdict in Verdict)
        lines.append(f"  {len(self.results)} requirements: {counts}")
        return "\n".join(lines)
