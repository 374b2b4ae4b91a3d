"""Settings of the core's own tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from core_mutations import COPY_VARIABLE


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker by which a test names the rules it holds."""
    config.addinivalue_line(
        "markers", "requirement(id, ...): ids of the rules in requirements.toml that a test holds"
    )
    copy = os.environ.get(COPY_VARIABLE)
    if copy is not None:
        import dex_agents

        loaded = Path(dex_agents.__file__).resolve()
        if not loaded.is_relative_to(Path(copy).resolve()):
            pytest.exit(f"dex_agents was loaded from {loaded}, not from {copy}", returncode=4)
