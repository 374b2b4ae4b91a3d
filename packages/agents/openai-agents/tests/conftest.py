"""Nothing here may reach a real provider or a trace collector."""

from __future__ import annotations

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True)
def no_tracing_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs without an API key and without trace export."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    set_tracing_disabled(True)
