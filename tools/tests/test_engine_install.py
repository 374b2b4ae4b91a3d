from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from random import Random

import pytest
from release_server import ReleaseServer, archive_of, release_server, write_dexcli

from tools.engine.install import cache_folder, extract_program, install, installed_program
from tools.engine.release import Release, asset_name
from tools.errors import ToolError

PLATFORM = "linux_amd64"
ASSET = asset_name("1.2.3", PLATFORM)


@pytest.fixture
def server() -> Generator[ReleaseServer]:
    with release_server() as running:
        yield running


def program_bytes(folder: Path, version: str = "1.2.3") -> bytes:
    return write_dexcli(folder / "original", version=version).read_bytes()


def quiet(_: int, __: int | None) -> None:
    """Show no progress."""


def test_a_release_without_pinned_checksum_is_checked_against_its_own_list(
    server: ReleaseServer, tmp_path: Path
) -> None:
    files = {"LICENSE": b"a licence", "dexcli": program_bytes(tmp_path)}
    server.serve(ASSET, archive_of(files))
    cache = tmp_path / "cache"
    release = Release("1.2.3", server.url, {})
    program, origin = install(cache, release, PLATFORM, quiet)
    assert program == installed_program(cache, release, PLATFORM)
    assert program.read_bytes() == files["dexcli"]
    assert origin == "from the release's checksums.txt"
    # The archive and the unpacking folder are gone, and nothing but the program was unpacked.
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["dexcli"]


def test_a_pinned_checksum_wins_over_what_the_release_lists(
    server: ReleaseServer, tmp_path: Path
) -> None:
    digest = server.serve(ASSET, archive_of({"dexcli": program_bytes(tmp_path)}))
    _, origin = install(
        tmp_path / "cache", Release("1.2.3", server.url, {PLATFORM: digest}), PLATFORM, quiet
    )
    assert origin == "pinned"
    assert ("checksums.txt", None) not in server.requests
    with pytest.raises(ToolError, match="it is damaged or was replaced"):
        install(
            tmp_path / "other", Release("1.2.3", server.url, {PLATFORM: "0" * 64}), PLATFORM, quiet
        )


def test_a_release_that_does_not_list_the_archive_is_refused(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.serve("other.tar.gz", b"other")
    with pytest.raises(ToolError, match=f"does not list {ASSET}"):
        install(tmp_path, Release("1.2.3", server.url, {}), PLATFORM, quiet)


def test_a_program_of_another_version_is_not_installed(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.serve(ASSET, archive_of({"dexcli": program_bytes(tmp_path, version="1.2.4")}))
    cache = tmp_path / "cache"
    with pytest.raises(ToolError, match=r"holds dexcli 1\.2\.4, not 1\.2\.3"):
        install(cache, Release("1.2.3", server.url, {}), PLATFORM, quiet)
    assert list(cache.iterdir()) == []


def test_installing_over_a_broken_one_repairs_it_and_over_a_good_one_keeps_it(
    server: ReleaseServer, tmp_path: Path
) -> None:
    release = Release("1.2.3", server.url, {})
    server.serve(ASSET, archive_of({"dexcli": program_bytes(tmp_path)}))
    program = installed_program(tmp_path / "cache", release, PLATFORM)
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    install(tmp_path / "cache", release, PLATFORM, quiet)
    assert "behaviour" in program.read_text()
    before = program.stat().st_ino
    install(tmp_path / "cache", release, PLATFORM, quiet)
    assert program.stat().st_ino == before


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"dexcli": b"x", "../outside": b"x"}, {}),
        ({"dexcli": b"x", "a/../../outside": b"x"}, {}),
        ({"dexcli": b"x", "/outside": b"x"}, {}),
        ({"dexcli": b"x", "..\\outside": b"x"}, {}),
        ({"dexcli": b"x"}, {"link": "../outside"}),
        ({}, {"dexcli": "/outside"}),
    ],
)
def test_an_archive_with_a_name_that_leads_outside_is_refused(
    tmp_path: Path, files: dict[str, bytes], links: dict[str, str]
) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(archive_of(files, links))
    target = tmp_path / "unpacked"
    with pytest.raises(ToolError, match="leads outside its folder"):
        extract_program(archive, target)
    assert not target.exists()
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"README": b"x"}, {}),
        ({"folder/dexcli": b"x"}, {}),
        ({"README": b"x"}, {"dexcli": "README"}),
    ],
)
def test_an_archive_without_a_program_at_its_top_is_refused(
    tmp_path: Path, files: dict[str, bytes], links: dict[str, str]
) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(archive_of(files, links))
    with pytest.raises(ToolError, match="has no program named dexcli at its top"):
        extract_program(archive, tmp_path / "unpacked")


@pytest.mark.parametrize("cut", [0, 10, 20_000])
def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(archive_of({"dexcli": Random(1).randbytes(50_000)})[:cut])
    with pytest.raises(ToolError, match="cannot be unpacked"):
        extract_program(archive, tmp_path / "unpacked")


def test_an_archive_that_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    data = archive_of({"dexcli": Random(1).randbytes(5_000).hex().encode()})
    archive.write_bytes(data[:1000] + b"\xff" * 1000 + data[2000:])
    with pytest.raises(ToolError, match="cannot be unpacked"):
        extract_program(archive, tmp_path / "unpacked")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEX_ENGINE_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv("DEX_ENGINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dex-agents/engine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/dex-agents/engine"
