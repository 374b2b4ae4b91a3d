"""What each package offers is kept as a list, so that no name comes or goes unseen."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tools.public_api import LISTS, api_lines, list_of
from tools.workspace import Member, read_members

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = read_members(ROOT)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_package_offers_what_its_list_says(member: Member) -> None:
    kept = (ROOT / list_of(member)).read_text(encoding="utf-8").splitlines()
    found = api_lines(member.import_name)
    diff = "\n".join(difflib.unified_diff(kept, found, "the list", "the package", lineterm="", n=0))
    assert kept == found, (
        f"the public names of {member.name} have changed:\n{diff}\n"
        "If that is meant, run `python3 -m tools api --write`, and add a changelog fragment where "
        "users can notice."
    )


def test_there_is_one_list_for_each_package_and_no_other() -> None:
    lists = {path.relative_to(ROOT) for path in (ROOT / LISTS).iterdir()}
    assert lists == {list_of(member) for member in MEMBERS}
