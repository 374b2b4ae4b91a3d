"""The `db` commands: work on a data file itself, without an engine."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dex_embedded._open import data_file_of
from dex_embedded._store.backup import backup_file
from dex_embedded._store.check import check_file
from dex_embedded._store.prune import prune_file

_SECONDS_OF: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE: Final = re.compile(r"(\d{1,9})([smhd])")


def check(data_dir: Path, *, as_json: bool) -> bool:
    """Prints what is wrong with the data file; returns whether nothing is."""
    report = check_file(data_file_of(data_dir))
    if as_json:
        _print_json(asdict(report))
    else:
        print(
            f"{report.path}: format version {report.format_version}, {report.size:,} bytes,"
            f" {report.active_runs} active and {report.closed_runs} closed runs"
        )
        for problem in report.problems:
            print(f"- {problem}")
        print(f"{len(report.problems)} problems" if report.problems else "No problems")
    return not report.problems


def backup(data_dir: Path, target: Path, *, as_json: bool) -> None:
    """Copies the data file to a new file."""
    size = backup_file(data_file_of(data_dir), target)
    if as_json:
        _print_json({"target": target, "size": size})
    else:
        print(f"{target}: {size:,} bytes")


def prune(data_dir: Path, age: float, *, dry_run: bool, compact: bool, as_json: bool) -> None:
    """Removes closed runs older than an age in seconds."""
    before = time.time() - age
    report = prune_file(
        data_file_of(data_dir), closed_before=before, dry_run=dry_run, compact=compact
    )
    if as_json:
        _print_json({**asdict(report), "dry_run": dry_run})
        return
    moment = datetime.fromtimestamp(before, UTC).isoformat(sep=" ", timespec="seconds")
    print(
        f"{'Would remove' if dry_run else 'Removed'} {report.runs} runs closed before {moment},"
        f" with {report.events} events and {report.stream_messages} stream messages"
    )
    if not dry_run:
        print(f"{report.size_before:,} bytes before, {report.size_after:,} bytes now")


def seconds_of(age: str) -> float:
    """The seconds of an age such as `30d`, `12h`, `90m` or `45s`.

    Raises:
        ValueError: It is not one.
    """
    found = _AGE.fullmatch(age)
    if found is None:
        raise ValueError("must be a whole number and a unit, such as 30d, 12h, 90m or 45s")
    return float(found[1]) * _SECONDS_OF[found[2]]


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, default=str))
