"""The file of access tokens: who may call an engine that other machines can reach.

One token a line; blank lines and lines that begin with `#` do not count. Several at once are what
makes a rotation without a gap: add the new one, move the callers, take the old one out.

Only digests of the tokens are kept, so nothing that prints or dumps this object shows one, and
comparing digests takes as long for a near miss as for nonsense.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOGGER = logging.getLogger(__name__)

MAXIMUM_BYTES: Final = 65_536
_TOKEN: Final = re.compile(rb"[\x21-\x7e]+")
_SCHEME: Final = "bearer "
_SETTLED_AFTER: Final = 2.0
"""A file written within this many seconds may be written again without looking different."""


class TokenFileError(ValueError):
    """The token file cannot be used. The text never holds any of its content.

    Attributes:
        path: The token file.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"cannot use token file {path}: {problem}")
        self.path = path


def read_tokens(path: Path) -> list[str]:
    """The tokens in the file, in its order.

    Raises:
        TokenFileError: It cannot be read, others may read it, or there is no token in it.
    """
    return _read(path)[0]


class TokenFile:
    """The tokens that are accepted now; follows the file as it changes.

    While the file cannot be used nobody is let in: tokens that were taken out of it must not live
    on because what is in it now cannot be read.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        """Read the file.

        Args:
            path: The token file.
            now: The wall clock, in seconds, as the file system has it.

        Raises:
            TokenFileError: See `read_tokens`.
        """
        self._path = path
        self._now = now
        self._seen: tuple[int, ...] | None = None
        self._digests: frozenset[bytes] = frozenset()
        self._problem: TokenFileError | None = None
        self._load()

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}: {len(self._digests)} tokens>"

    def digest_of(self, authorization: str) -> bytes:
        """Stands for what a caller sent in `authorization`, for `accepts`."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return b""
        return _digest(authorization[len(_SCHEME) :].strip().encode("utf-8", "replace"))

    def accepts(self, digest: bytes) -> bool:
        """Whether the token with this digest is accepted now.

        Raises:
            TokenFileError: Nobody knows at the moment, since the file cannot be used.
        """
        self._follow()
        if self._problem is not None:
            raise self._problem
        # All of them, always: how long it takes must not tell which one was nearly right.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    def _follow(self) -> None:
        """Read the file again if it has changed."""
        try:
            facts = _facts(os.stat(self._path))
        except OSError:
            facts = None
        if facts is not None and facts == self._seen and self._problem is None:
            return
        before = self._digests
        try:
            self._load()
        except TokenFileError as problem:
            if self._problem is None:
                _LOGGER.error("%s; no call is let in until it can be used", problem)
            self._problem = problem
            self._digests = frozenset()
            self._seen = None
            return
        if self._problem is not None or self._digests != before:
            self._problem = None
            _LOGGER.info("token file %s read again: %d tokens", self._path, len(self._digests))

    def _load(self) -> None:
        tokens, facts = _read(self._path)
        self._digests = frozenset(_digest(token.encode()) for token in tokens)
        settled = self._now() - max(facts.st_mtime, facts.st_ctime) >= _SETTLED_AFTER
        self._seen = _facts(facts) if settled else None


def _read(path: Path) -> tuple[list[str], os.stat_result]:
    try:
        # Not blocking: a named pipe at this place would hold up the whole engine.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TokenFileError(path, error.strerror or "it cannot be opened") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise TokenFileError(path, "it is not a regular file")
        if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise TokenFileError(
                path, "every user of this machine can read or write it; run chmod o-rwx on it"
            )
        content = os.read(fd, MAXIMUM_BYTES + 1)
    except OSError as error:
        raise TokenFileError(path, error.strerror or "it cannot be read") from None
    finally:
        os.close(fd)
    if len(content) > MAXIMUM_BYTES:
        raise TokenFileError(path, f"it is larger than {MAXIMUM_BYTES:,} bytes")
    tokens: list[str] = []
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if not _TOKEN.fullmatch(text):
            raise TokenFileError(
                path, f"line {number} is not one token of printable ASCII without spaces"
            )
        tokens.append(text.decode("ascii"))
    if not tokens:
        raise TokenFileError(path, "there is no token in it; write one a line")
    return tokens, facts


def _facts(found: os.stat_result) -> tuple[int, ...]:
    """Changes whenever the content, or who may read it, may have changed."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
