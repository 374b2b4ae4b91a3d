"""The form in which a test asks for a crash."""

from __future__ import annotations

import pytest

from dex_embedded._runtime.faults import Faults, parse_faults


def test_places_with_and_without_a_type_are_read() -> None:
    assert parse_faults("commit.before:2, commit.after:CallTool:1") == {
        "commit.before": 2,
        "commit.after:CallTool": 1,
    }


@pytest.mark.parametrize("text", ["commit.before", "commit.before:0", "nowhere:1", ":1"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fault"):
        parse_faults(text)


def test_nothing_happens_unless_asked_for() -> None:
    faults = Faults.from_environment()
    assert not faults.enabled
    faults.reach("commit.before", "CallTool")
