"""The command `tools bench`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tools.commands import Commands, in_environment
from tools.errors import ToolError


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    text = "measure what a turn costs; 1 when a ratio that must hold does not"
    added = commands.add("bench", in_environment(_bench), text)
    added.add_argument("--full", action="store_true", help="32 and 1,000 sessions; some minutes")
    added.add_argument("--data", type=Path, help="folder on the disk to measure; temporary default")


def _bench(_root: Path, parsed: argparse.Namespace) -> int:
    # Here, since `tools` runs before anything is installed.
    import asyncio

    from tools.benchmarks.report import ratios, table
    from tools.benchmarks.running import FULL, QUICK, run_benchmark

    with tempfile.TemporaryDirectory(prefix="dex-bench-", dir=parsed.data) as temporary:
        folder = Path(temporary).resolve()
        report = asyncio.run(run_benchmark(FULL if parsed.full else QUICK, folder))
    for line in table(report):
        print(line)
    broken = [ratio.what for ratio in ratios(report) if not ratio.holds]
    if broken:
        raise ToolError(f"above the limit: {'; '.join(broken)}")
    return 0
