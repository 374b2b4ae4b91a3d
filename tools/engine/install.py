"""Puts a released engine into the cache: download, checksum, unpack, try, move into place."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from tools.engine.download import DownloadError, Progress, download, fetch_text
from tools.engine.probe import version_of
from tools.engine.release import CHECKSUMS, PROGRAM, Release, asset_name, parse_checksums
from tools.errors import ToolError

# Far above what the program needs, far below what fills a disk.
_SIZE_LIMIT = 1 << 30


def cache_folder() -> Path:
    """Return the folder for downloaded engines, shared by all clones of one user."""
    named = os.environ.get("DEX_ENGINE_CACHE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dex-agents" / "engine"


def installed_program(cache: Path, release: Release, platform: str) -> Path:
    """Return where the program of a release lies in the cache once it is installed."""
    return cache / f"{PROGRAM}-{release.version}-{platform}" / PROGRAM


def install(cache: Path, release: Release, platform: str, progress: Progress) -> tuple[Path, str]:
    """Install a release into the cache; return the program and where its checksum came from.

    Raises:
        ToolError: the archive cannot be had, is not what was pinned, would write outside its
            folder, or its program does not say the version it should.
    """
    asset = asset_name(release.version, platform)
    digest, origin = _checksum(release, platform, asset)
    archive = cache / asset
    download(release.url + asset, archive, digest, progress)
    program = installed_program(cache, release, platform)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacking-") as folder:
        unpacked = Path(folder) / program.parent.name
        unpacked.mkdir()
        try:
            extract_program(archive, unpacked / PROGRAM)
            found = version_of(unpacked / PROGRAM)
            if found != release.version:
                raise ToolError(f"{asset} holds {PROGRAM} {found}, not {release.version}")
        finally:
            archive.unlink()
        try:
            unpacked.rename(program.parent)
        except OSError:
            # Another process was faster, or what is there is broken.
            if _says(program, release.version):
                return program, origin
            shutil.rmtree(program.parent)
            unpacked.rename(program.parent)
    return program, origin


def extract_program(archive: Path, target: Path) -> None:
    """Write the program at the top of an archive to `target`, and nothing else of the archive.

    Raises:
        ToolError: the archive cannot be read, holds a name that leads outside, or has no program.
    """
    try:
        with tarfile.open(archive, "r:gz") as opened:
            found: tarfile.TarInfo | None = None
            for member in opened:
                _refuse_outside(archive, member)
                if PurePosixPath(member.name) == PurePosixPath(PROGRAM):
                    found = member
            if found is None or not found.isreg():
                raise ToolError(f"{archive.name} has no program named {PROGRAM} at its top")
            if found.size > _SIZE_LIMIT:
                raise ToolError(f"{archive.name}: {PROGRAM} is larger than {_SIZE_LIMIT} bytes")
            source = opened.extractfile(found)
            assert source is not None  # a regular file always has content
            with source, target.open("xb") as file:
                shutil.copyfileobj(source, file)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ToolError(f"{archive.name} cannot be unpacked: {error}") from error
    target.chmod(0o755)


def _refuse_outside(archive: Path, member: tarfile.TarInfo) -> None:
    # Only the program is written, but an archive that tries this is not one to take it from.
    for name in (member.name, *([member.linkname] if member.issym() or member.islnk() else [])):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise ToolError(f"{archive.name} is refused: {name!r} leads outside its folder")


def _checksum(release: Release, platform: str, asset: str) -> tuple[str, str]:
    if platform in release.sha256:
        return release.sha256[platform], "pinned"
    listed = parse_checksums(fetch_text(release.url + CHECKSUMS))
    if asset not in listed:
        raise DownloadError(f"{CHECKSUMS} of release {release.version} does not list {asset}")
    return listed[asset], f"from the release's {CHECKSUMS}"


def _says(program: Path, version: str) -> bool:
    try:
        return version_of(program) == version
    except ToolError:
        return False
