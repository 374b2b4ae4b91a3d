"""What is known about the release of the reference engine: its assets and their checksums."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError
from tools.workspace import read_toml

RELEASE_FILE = Path(__file__).with_name("release.toml")
CHECKSUMS = "checksums.txt"
PROGRAM = "dexcli"

PLATFORMS = ("darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64")

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Release:
    """One release of the reference engine.

    Attributes:
        version: Three plain numbers.
        url: Where its assets lie, with a slash at the end.
        sha256: Checksum of the archive of each platform for which it is pinned.
    """

    version: str
    url: str
    sha256: Mapping[str, str]


def read_release(path: Path = RELEASE_FILE) -> Release:
    """Return the pinned release; `DEX_ENGINE_URL` names another place with the same assets.

    Raises:
        ToolError: the file is not a description of a release.
    """
    data = read_toml(path)
    version, url, digests = data.get("version"), data.get("url"), data.get("sha256", {})
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ToolError(f"{path.name}: version must be three numbers, such as 1.2.3")
    if not isinstance(url, str) or not isinstance(digests, dict):
        raise ToolError(f"{path.name}: url must be text and sha256 a table")
    checked: dict[str, str] = {}
    for name, digest in digests.items():  # pyright: ignore[reportUnknownVariableType] - read here
        if name not in PLATFORMS or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ToolError(f"{path.name}: {name} = {digest!r} is no SHA-256 of a known platform")
        checked[name] = digest
    base = os.environ.get("DEX_ENGINE_URL") or url.replace("{version}", version)
    return Release(version, base.rstrip("/") + "/", checked)


def this_platform() -> str:
    """Return the part of an asset's name that stands for this machine.

    Raises:
        ToolError: there is no asset for this kind of machine.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    found = f"{system}_{_MACHINES.get(machine, machine)}"
    if found not in PLATFORMS:
        raise ToolError(f"there is no {PROGRAM} for {found}, only for {', '.join(PLATFORMS)}")
    return found


def asset_name(version: str, platform_name: str) -> str:
    """Return the name of a platform's archive in a release."""
    return f"{PROGRAM}_v{version}_{platform_name}.tar.gz"


def parse_checksums(text: str) -> dict[str, str]:
    """Return the SHA-256 of each file named in a `checksums.txt`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        digest, _, name = line.strip().partition(" ")
        if _DIGEST.fullmatch(digest.lower()) and name.strip():
            # A star before the name marks a file that was read as binary.
            found[name.strip().lstrip("*")] = digest.lower()
    return found


def release_text(version: str, checksums: Mapping[str, str], *, old: str) -> str:
    """Return the release file with another version and the checksums of all its platforms.

    Raises:
        ToolError: the version is none, or the checksums lack a platform.
    """
    if not _VERSION.fullmatch(version):
        raise ToolError(f"{version!r} is no version; write three numbers, such as 1.2.3")
    lines: list[str] = []
    for name in PLATFORMS:
        asset = asset_name(version, name)
        if asset not in checksums:
            raise ToolError(f"{CHECKSUMS} of {version} lacks {asset}")
        lines.append(f"{name} = {json.dumps(checksums[asset])}\n")
    head, _, _ = old.partition("[sha256]\n")
    head = re.sub(r'^version = ".*"$', f'version = "{version}"', head, flags=re.MULTILINE)
    return head + "[sha256]\n" + "".join(lines)
