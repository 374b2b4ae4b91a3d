"""The page that says what is served."""

from __future__ import annotations

import re
from pathlib import Path

from dex.dexpb import dex_pb2 as pb

from dex_embedded._wire.server import REFUSED, SERVED

PAGE = (Path(__file__).parent.parent / "SUPPORT.md").read_text(encoding="utf-8")


def listed() -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE))


def test_every_call_of_the_protocol_is_served_or_refused_by_name() -> None:
    service = pb.DESCRIPTOR.services_by_name["FlowService"]
    assert {method.name for method in service.methods} == {*SERVED, *REFUSED}


def test_the_page_lists_exactly_the_calls_that_exist_and_which_are_refused() -> None:
    rows = listed()
    assert set(rows) == {*SERVED, *REFUSED, "PollWorkerTask"}
    assert {name for name, served in rows.items() if served == "no"} == set(REFUSED)
