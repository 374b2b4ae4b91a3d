"""Settings of the core's own tests."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from core_mutations import COPY_VARIABLE

from dex_agents.testing import StartProcess


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


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Generator[StartProcess]:
    """How workers and engines are started that are killed often."""
    from dex_agents_testkit.faults import forked_start

    log = tmp_path_factory.mktemp("nursery") / "nursery.log"
    with forked_start(log, "dex_agents.testing") as forked:
        yield forked
