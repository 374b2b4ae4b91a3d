"""What the system says about a process. Linux alone has these files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

MIB: Final = 1024 * 1024

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads /proc, which this system does not have"
)


def memory_of(pid: int, field: str = "VmRSS") -> int:
    """Bytes of a process in memory now, or its `VmHWM`: the most there ever were."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {field}")


def cpu_seconds_of(pid: int) -> float:
    """Processor time a process has used, which another busy process does not stretch."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files_of(pid: int) -> int:
    """Open file descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))
