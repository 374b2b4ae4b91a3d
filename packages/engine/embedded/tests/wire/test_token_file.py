"""Reading the file of access tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dex_embedded._wire.token_file import TokenFile, TokenFileError, read_tokens

SECRET = "s3cret-value-that-must-not-show"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def accepts(tokens: TokenFile, token: str) -> bool:
    return tokens.accepts(tokens.digest_of(f"Bearer {token}"))


def test_every_line_is_a_token_but_blank_ones_and_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", f"# the old one\n\nfirst\n  {SECRET}  \n\t\n")
    assert read_tokens(path) == ["first", SECRET]
    tokens = TokenFile(path)
    assert accepts(tokens, "first")
    assert accepts(tokens, SECRET)
    assert not accepts(tokens, "# the old one")
    assert not accepts(tokens, "")


@pytest.mark.parametrize(
    "sent",
    ["", "Bearer", "Bearer ", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x", "Bearer \ud800"],
)
def test_only_a_bearer_token_of_the_file_is_accepted(tmp_path: Path, sent: str) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", SECRET))
    assert not tokens.accepts(tokens.digest_of(sent))
    assert tokens.accepts(tokens.digest_of(f"bearer {SECRET}"))


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (SECRET, 0o604, "chmod o-rwx"),
        (SECRET, 0o602, "chmod o-rwx"),
        ("# none yet\n", 0o600, "no token"),
        (f"{SECRET} second", 0o600, "line 1"),
        (f"first\n{SECRET}\x7f", 0o600, "line 2"),
        (f"{SECRET}é", 0o600, "line 1"),
        (f"{SECRET}\n" * 3000, 0o600, "larger than"),
    ],
)
def test_a_file_that_cannot_be_trusted_or_understood_is_refused_without_showing_it(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    path = write(tmp_path / "tokens", text, mode)
    with pytest.raises(TokenFileError, match=problem) as caught:
        TokenFile(path)
    assert caught.value.path == path
    assert SECRET not in str(caught.value)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, problem in (("none", "No such file"), (".", "regular"), ("pipe", "regular")):
        with pytest.raises(TokenFileError, match=problem):
            TokenFile(tmp_path / name)


def test_nothing_of_a_token_is_kept(tmp_path: Path) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", SECRET))
    assert SECRET not in repr(tokens)
    assert SECRET not in repr(vars(tokens))


def test_a_changed_file_counts_from_the_next_call_on(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "first")
    tokens = TokenFile(path)
    write(path, "first\nsecond")
    assert accepts(tokens, "first")
    assert accepts(tokens, "second")
    replacement = write(tmp_path / "next", "second")
    replacement.replace(path)
    assert not accepts(tokens, "first")
    assert accepts(tokens, "second")


def test_a_change_of_the_same_length_in_the_same_instant_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "first")
    facts = path.stat()
    tokens = TokenFile(path)
    path.write_text("other")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert accepts(tokens, "other")
    assert not accepts(tokens, "first")


def test_while_the_file_cannot_be_used_nobody_is_let_in(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "first")
    tokens = TokenFile(path)
    path.unlink()
    with pytest.raises(TokenFileError):
        accepts(tokens, "first")
    write(path, "first", 0o644)
    with pytest.raises(TokenFileError):
        accepts(tokens, "first")
    path.chmod(0o600)
    assert accepts(tokens, "first")


def test_a_settled_file_is_not_read_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tokens", "first")
    tokens = TokenFile(path, now=lambda: path.stat().st_mtime + 60)

    def fail(*_: object) -> bytes:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", fail)
        assert accepts(tokens, "first")
    write(path, "second")
    assert accepts(tokens, "second")
