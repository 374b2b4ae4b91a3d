"""Downloads a file over HTTP: resumed where it stopped, checked before it counts as there.

Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`), as for most programs.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tools.errors import ToolError

# Called with the bytes that are there and the bytes there will be, None where that is unknown.
Progress = Callable[[int, int | None], None]

_TIMEOUT_SECONDS = 20.0
_TRIES = 3
_CHUNK = 1 << 16
_TEXT_LIMIT = 1 << 20
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

OFFLINE_ADVICE = (
    "Without a network: name a dexcli in DEXCLI, put one on PATH, or set DEX_ENGINE_URL to a "
    "mirror; the embedded engine needs none of it. Behind a proxy set HTTPS_PROXY."
)


class DownloadError(ToolError):
    """A file could not be had; the text says which, why, and what to do."""


def download(url: str, target: Path, sha256: str, progress: Progress) -> None:
    """Make `target` the file at `url`, whose checksum must be `sha256`.

    What has arrived stays in a file beside `target` when the connection breaks, and the next try,
    in this call or a later one, asks only for the rest. `target` appears complete or not at all.

    Raises:
        DownloadError: the server cannot be reached, has no such file, keeps breaking off, or sent
            something with another checksum.
    """
    _refuse_open_traffic(url)
    # The checksum is part of the name: what another release left behind is never continued.
    part = target.with_name(f"{target.name}.{sha256[:16]}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        if _fetch_rest(url, part, progress):
            break
    else:
        size = part.stat().st_size if part.exists() else 0
        raise DownloadError(
            f"{url} broke off {_TRIES} times; {size} bytes are kept, run it again to go on"
        )
    found = _digest_of(part)
    if found != sha256:
        part.unlink()
        raise DownloadError(
            f"{url} has the SHA-256 {found}, expected {sha256}; it is damaged or was replaced, and "
            "nothing of it is kept"
        )
    part.replace(target)


def fetch_text(url: str) -> str:
    """Return a small text file.

    Raises:
        DownloadError: the server cannot be reached, has no such file, or it is too large.
    """
    _refuse_open_traffic(url)
    try:
        with _open(urllib.request.Request(url)) as response:
            data = response.read(_TEXT_LIMIT + 1)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _explained(url, error) from error
    if len(data) > _TEXT_LIMIT:
        raise DownloadError(
            f"{url} is larger than {_TEXT_LIMIT} bytes, so it is not what it should"
        )
    return data.decode("utf-8", errors="replace")


def _fetch_rest(url: str, part: Path, progress: Progress) -> bool:
    """Add to `part` what it lacks; say whether it is complete now."""
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)
    if there:
        request.add_header("Range", f"bytes={there}-")
    try:
        with _open(request) as response:
            continues = response.status == http.HTTPStatus.PARTIAL_CONTENT
            length = response.headers.get("Content-Length")
            start = there if continues else 0
            total = start + int(length) if length is not None else None
            with part.open("ab" if continues else "wb") as file:
                return _copy(response, file, start, total, progress)
    except urllib.error.HTTPError as error:
        if there and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Either all of it is there, or what is there is wrong; the checksum tells.
            return True
        raise _explained(url, error) from error
    except urllib.error.URLError as error:
        raise _explained(url, error) from error
    except (http.client.HTTPException, ConnectionError, TimeoutError):
        return False  # it broke off on the way


def _copy(
    source: http.client.HTTPResponse,
    target: IO[bytes],
    start: int,
    total: int | None,
    progress: Progress,
) -> bool:
    done = start
    progress(done, total)
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        done += len(chunk)
        progress(done, total)
    return total is None or done >= total


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from an encrypted connection to an open one."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _refuse_open_traffic(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    opener = urllib.request.build_opener(_NoDowngrade)
    return opener.open(request, timeout=_TIMEOUT_SECONDS)


def _refuse_open_traffic(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (
        parts.scheme == "http" and (parts.hostname or "") in _LOOPBACK
    ):
        raise DownloadError(f"{url} is not https; a program is not fetched over an open connection")


def _explained(url: str, error: Exception) -> DownloadError:
    if isinstance(error, urllib.error.HTTPError):
        return DownloadError(f"{url}: the server answered {error.code} {error.reason}")
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    host = urlsplit(url).hostname
    return DownloadError(f"{host} cannot be reached ({reason}). {OFFLINE_ADVICE}")


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
