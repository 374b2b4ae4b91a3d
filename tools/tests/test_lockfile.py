from __future__ import annotations

import pytest

from tools.errors import ToolError
from tools.lockfile import neutral, problems_in

DIGEST = "sha256:" + "0" * 64

RESOLVED = f"""version = 1
requires-python = ">=3.11"

[[package]]
name = "mine"
version = "0.1.0"
source = {{ editable = "packages/agents/mine" }}

[[package]]
name = "thing"
version = "1.0"
source = {{ registry = "https://index.example/simple" }}
sdist = {{ url = "https://files.example/a/thing-1.0.tar.gz", hash = "{DIGEST}", size = 10, upload-time = "2026-01-01T00:00:00Z" }}
wheels = [
    {{ url = "https://files.example/b/c/thing-1.0-py3-none-any.whl#x=1", hash = "{DIGEST}", size = 9 }},
]
"""  # noqa: E501 - a lock has long lines


def test_a_resolved_lock_becomes_one_that_names_files_only() -> None:
    text = neutral(RESOLVED)
    assert "://" not in text
    assert f'sdist = {{ path = "thing-1.0.tar.gz", hash = "{DIGEST}", size = 10 }}' in text
    assert f'{{ path = "thing-1.0-py3-none-any.whl", hash = "{DIGEST}", size = 9 }},' in text
    assert 'source = { registry = "wheelhouse" }' in text
    assert problems_in(text) == []


def test_rewriting_twice_changes_nothing() -> None:
    assert neutral(neutral(RESOLVED)) == neutral(RESOLVED)


def test_a_resolved_lock_is_refused_with_the_line_and_the_command() -> None:
    problems = problems_in(RESOLVED)
    assert any("line 12 names a host" in p and "tools lock" in p for p in problems)


def test_a_package_from_a_git_repository_cannot_be_locked() -> None:
    lock = RESOLVED + '\n[[package]]\nname = "g"\nsource = { git = "https://host.example/g" }\n'
    with pytest.raises(ToolError, match="names a host"):
        neutral(lock)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (f', hash = "{DIGEST}", size = 9', "", "has no sha256 hash"),
        ('"thing-1.0-py3-none-any.whl"', '"sub/thing.whl"', "is not a bare file name"),
        ('registry = "wheelhouse"', 'registry = "elsewhere"', "not from the wheelhouse"),
    ],
)
def test_a_lock_edited_by_hand_is_refused(old: str, new: str, problem: str) -> None:
    good = neutral(RESOLVED)
    assert old in good
    (found,) = problems_in(good.replace(old, new))
    assert problem in found


def test_text_that_is_not_toml_is_a_problem() -> None:
    (found,) = problems_in("[[package")
    assert "not valid TOML" in found
