from __future__ import annotations

import hashlib
from pathlib import Path

from tools.wheelhouse import match_files, missing_requirements, split_requirements

EXPORTED = """# a comment
thing==1.0 ; python_full_version < '3.13' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via other
other==2.0 \\
    --hash=sha256:cc
"""


def test_a_requirement_and_its_hashes_are_one_entry() -> None:
    assert split_requirements(EXPORTED) == [
        "thing==1.0 ; python_full_version < '3.13' --hash=sha256:aa --hash=sha256:bb",
        "other==2.0 --hash=sha256:cc",
    ]


def test_only_what_was_never_downloaded_is_missing(tmp_path: Path) -> None:
    (tmp_path / "thing.whl").touch()
    done = {"thing": ["thing.whl"], "not-for-this-platform": []}
    wanted = ["thing", "not-for-this-platform", "new"]
    assert missing_requirements(wanted, done, tmp_path) == ["new"]


def test_a_requirement_whose_file_was_deleted_is_missing_again(tmp_path: Path) -> None:
    assert missing_requirements(["thing"], {"thing": ["thing.whl"]}, tmp_path) == ["thing"]


def test_files_are_matched_by_what_they_hold_not_by_their_name(tmp_path: Path) -> None:
    (tmp_path / "right.whl").write_bytes(b"right")
    (tmp_path / "thing-1.0.whl").write_bytes(b"wrong")
    wanted = f"thing==1.0 --hash=sha256:{hashlib.sha256(b'right').hexdigest()}"
    assert match_files([wanted, "other==1"], tmp_path) == {wanted: ["right.whl"], "other==1": []}
