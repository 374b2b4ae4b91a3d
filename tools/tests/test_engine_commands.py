from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from release_server import ReleaseServer, archive_of, release_server, write_dexcli

from tools import checks
from tools.cli import main
from tools.engine import commands as engine_commands
from tools.engine.release import PLATFORMS, RELEASE_FILE, asset_name, read_release, this_platform


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[ReleaseServer]:
    with release_server() as running:
        monkeypatch.setenv("DEX_ENGINE_URL", running.url)
        monkeypatch.setenv("DEX_ENGINE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.delenv("DEXCLI", raising=False)
        yield running


def serve_release(server: ReleaseServer, tmp_path: Path) -> str:
    version = read_release().version
    program = write_dexcli(tmp_path / "original", version=version)
    asset = asset_name(version, this_platform())
    server.serve(asset, archive_of({"dexcli": program.read_bytes()}))
    return asset


def test_a_released_engine_is_fetched_once_and_then_used_from_the_cache(
    server: ReleaseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asset = serve_release(server, tmp_path)
    assert main(["engine", "resolve", "--explain"]) == 0
    first = capsys.readouterr()
    program = Path(first.out.strip())
    assert program.is_relative_to(tmp_path / "cache")
    assert "downloaded now, its checksum from the release's checksums.txt" in first.err
    server.requests.clear()
    assert main(["engine", "resolve", "--explain", "--offline"]) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "it was downloaded before" in second.err
    assert server.requests == []
    assert main(["engine", "fetch"]) == 0
    assert capsys.readouterr().out == first.out
    assert (asset, None) in server.requests


def test_fetching_what_is_not_there_fails_where_resolving_goes_on(
    server: ReleaseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "fetch"]) == 1
    assert f"{server.url}checksums.txt: the server answered 404" in capsys.readouterr().err
    assert main(["engine", "resolve"]) == 0
    assert capsys.readouterr().out == "embedded\n"


def test_tests_run_on_the_reference_engine_or_say_why_not(
    server: ReleaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs: list[str] = []

    def run_tests(_: Path, extra: dict[str, str]) -> int:
        runs.append(extra["DEXCLI"])
        return 0

    monkeypatch.setattr(checks, "run_tests", run_tests)
    assert main(["engine", "test"]) == 0
    assert runs == []
    assert "nothing was tested on one" in capsys.readouterr().err
    serve_release(server, tmp_path)
    assert main(["engine", "test"]) == 0
    assert [Path(run).name for run in runs] == ["dexcli"]


@pytest.mark.usefixtures("server")
def test_pinning_takes_the_checksums_of_the_release(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "release.toml"
    path.write_text(RELEASE_FILE.read_text())
    monkeypatch.setattr(engine_commands, "RELEASE_FILE", path)
    digests = {name: server.serve(asset_name("9.8.7", name), name.encode()) for name in PLATFORMS}
    assert main(["engine", "pin", "9.8.7"]) == 0
    assert read_release(path).version == "9.8.7"
    assert read_release(path).sha256 == digests


def test_running_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "run"]) == 1
    assert "say what to run" in capsys.readouterr().err
