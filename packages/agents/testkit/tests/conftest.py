"""What the kit's own tests share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dex_agents.testing import StartProcess
from dex_agents_testkit.faults import forked_start


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Generator[StartProcess]:
    """How workers and engines are started that are killed often."""
    log = tmp_path_factory.mktemp("nursery") / "nursery.log"
    with forked_start(log, "dex_agents_testkit") as forked:
        yield forked
