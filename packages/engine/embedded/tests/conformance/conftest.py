"""The conformance suite runs against any engine.

`DEX_CONFORMANCE_ADDRESS` names one that is running already. Without it one private engine process
serves the whole session, from a fresh folder.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from engine_support import ADDRESS
from engine_testing.process import engine_process
from engine_testing.world import World, open_world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    given = os.environ.get(ADDRESS)
    if given:
        yield given
        return
    async with engine_process(
        tmp_path_factory.mktemp("engine"), env={"DEX_EMBEDDED_MINIMUM_HEARTBEAT": "1"}
    ) as engine:
        yield engine.address


@pytest.fixture(scope="session")
def heartbeat_timeout() -> timedelta:
    """The shortest heartbeat timeout the engine accepts; a foreign one wants ten seconds."""
    return timedelta(seconds=10 if os.environ.get(ADDRESS) else 1)


@pytest.fixture
async def world(engine_address: str, tmp_path: Path) -> AsyncGenerator[World]:
    """A client, and one worker that serves the scripted flow."""
    async with open_world(engine_address, tmp_path) as opened, opened.worker():
        yield opened


@pytest.fixture
async def bare_world(engine_address: str, tmp_path: Path) -> AsyncGenerator[World]:
    """A client without a worker."""
    async with open_world(engine_address, tmp_path) as opened:
        yield opened
