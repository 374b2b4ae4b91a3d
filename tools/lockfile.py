"""The form of uv.lock that is committed: it names files, never where they come from.

uv accepts a lock whose packages come from a local folder. So the same lock works behind any mirror,
and every file in it is still checked against its hash.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, cast

from tools.errors import ToolError

WHEELHOUSE = "wheelhouse"

_REGISTRY = re.compile(r'registry = "[^"]*"')
_FILE = re.compile(r'\burl = "[^"]*?([^/"#]+)(?:#[^"]*)?"')
_UPLOAD_TIME = re.compile(r', upload-time = "[^"]*"')


def neutral(lock: str) -> str:
    """Return the lock text with every package from the wheelhouse and every file by its name.

    Raises:
        ToolError: something still names a host afterwards, such as a package from a git repository.
    """
    text = _REGISTRY.sub(f'registry = "{WHEELHOUSE}"', lock)
    text = _FILE.sub(lambda match: f'path = "{match.group(1)}"', text)
    text = _UPLOAD_TIME.sub("", text)
    problems = problems_in(text)
    if problems:
        raise ToolError("\n".join(problems))
    return text


def problems_in(lock: str) -> list[str]:
    """Return what in the lock text names a host or lacks a hash; an empty list is a good lock."""
    advice = "; run `python3 -m tools lock`, the only command that may write uv.lock"
    problems = [
        f"uv.lock line {number} names a host: {line.strip()[:100]}{advice}"
        for number, line in enumerate(lock.splitlines(), start=1)
        if "://" in line
    ]
    try:
        packages = cast("list[dict[str, Any]]", tomllib.loads(lock).get("package", []))
    except tomllib.TOMLDecodeError as error:
        return [*problems, f"uv.lock is not valid TOML: {error}{advice}"]
    for package in packages:
        name = package.get("name", "?")
        source = cast("dict[str, str]", package.get("source", {}))
        if source.keys() & {"editable", "virtual"}:
            continue
        if source != {"registry": WHEELHOUSE}:
            problems.append(f"uv.lock: {name} comes from {source}, not from the wheelhouse{advice}")
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        if not files:
            problems.append(f"uv.lock: {name} lists no file{advice}")
        for file in files:
            path = str(file.get("path", ""))
            if not path or "/" in path or "\\" in path:
                problems.append(f"uv.lock: a file of {name} is not a bare file name{advice}")
            if not str(file.get("hash", "")).startswith("sha256:"):
                problems.append(f"uv.lock: {path or 'a file'} of {name} has no sha256 hash{advice}")
    return problems
