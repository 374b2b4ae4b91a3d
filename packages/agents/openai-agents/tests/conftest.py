"""Nothing here may reach a real provider or a trace collector."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from agents import set_tracing_disabled

from dex_agents.testing import StartProcess
from dex_agents_testkit.faults import forked_start


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker by which a test names the facts about the SDK that it holds."""
    config.addinivalue_line(
        "markers", "sdk_fact(id, ...): ids of the facts in sdk_facts.toml that a test holds"
    )


@pytest.fixture(autouse=True)
def no_tracing_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs without an API key and without trace export."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    set_tracing_disabled(True)


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Generator[StartProcess]:
    """How workers and engines are started: importing the framework takes longer than most tests."""
    log = tmp_path_factory.mktemp("nursery") / "nursery.log"
    with forked_start(log, "dex_agents_openai_agents", "dex_agents_testkit.model_server") as forked:
        yield forked
