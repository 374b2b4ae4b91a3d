from __future__ import annotations

import hashlib
import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from release_server import ReleaseServer, release_server

from tools.engine.download import DownloadError, download, fetch_text

DATA = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server() -> Generator[ReleaseServer]:
    with release_server() as running:
        running.serve("file", DATA)
        yield running


class Reports:
    """Keeps what a progress bar would show."""

    def __init__(self) -> None:
        self.last: tuple[int, int | None] = (0, None)

    def __call__(self, done: int, total: int | None) -> None:
        assert done >= 0
        self.last = (done, total)


def parts(folder: Path) -> list[Path]:
    return list(folder.glob("*.part"))


def test_a_good_file_arrives_whole_and_progress_reaches_its_size(
    server: ReleaseServer, tmp_path: Path
) -> None:
    reports = Reports()
    download(server.url + "file", tmp_path / "cache/file", DIGEST, reports)
    assert (tmp_path / "cache/file").read_bytes() == DATA
    assert reports.last == (len(DATA), len(DATA))
    assert parts(tmp_path / "cache") == []


def test_a_connection_that_breaks_off_is_continued_where_it_stopped(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.breaks = 2
    download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert (tmp_path / "file").read_bytes() == DATA
    half = len(DATA) // 2
    three_quarters = half + (len(DATA) - half) // 2
    asked = [asked for _, asked in server.requests]
    assert asked == [None, f"bytes={half}-", f"bytes={three_quarters}-"]


def test_what_arrived_is_kept_for_the_next_run_when_it_keeps_breaking_off(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.breaks = 3
    with pytest.raises(DownloadError, match=r"broke off 3 times; \d+ bytes are kept, run it again"):
        download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert not (tmp_path / "file").exists()
    (part,) = parts(tmp_path)
    kept = part.stat().st_size
    server.requests.clear()
    download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert server.requests == [("file", f"bytes={kept}-")]
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_server_that_cannot_continue_sends_all_of_it_again(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.serves_ranges = False
    server.breaks = 1
    download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_part_that_is_already_whole_is_only_checked(
    server: ReleaseServer, tmp_path: Path
) -> None:
    (tmp_path / f"file.{DIGEST[:16]}.part").write_bytes(DATA)
    download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_tampered_file_is_refused_and_nothing_of_it_is_kept(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.files["file"] = b"X" + DATA[1:]
    with pytest.raises(DownloadError, match=f"expected {DIGEST}; it is damaged or was replaced"):
        download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert list(tmp_path.iterdir()) == []


def test_a_part_left_by_something_else_is_not_continued(
    server: ReleaseServer, tmp_path: Path
) -> None:
    (tmp_path / "file.0123456789abcdef.part").write_bytes(b"of another release")
    download(server.url + "file", tmp_path / "file", DIGEST, Reports())
    assert server.requests == [("file", None)]


def test_a_missing_file_is_named_with_the_servers_answer(
    server: ReleaseServer, tmp_path: Path
) -> None:
    with pytest.raises(DownloadError, match=r"/release/other: the server answered 404"):
        download(server.url + "other", tmp_path / "other", DIGEST, Reports())
    with pytest.raises(DownloadError, match="404"):
        fetch_text(server.url + "other")


def test_a_server_that_is_not_there_says_what_to_do_without_a_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(DownloadError, match=r"cannot be reached .*DEXCLI.*DEX_ENGINE_URL"):
        download(f"http://127.0.0.1:{port}/file", tmp_path / "file", DIGEST, Reports())
    assert list(tmp_path.iterdir()) == []


def test_a_proxy_from_the_environment_is_used(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/release/"))
    download("http://localhost:9/release/file", tmp_path / "file", DIGEST, Reports())
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("url", ["http://host.example/x", "ftp://127.0.0.1/x", "file:///etc/x"])
def test_a_program_is_not_fetched_over_an_open_connection(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="is not https"):
        download(url, tmp_path / "file", DIGEST, Reports())
    with pytest.raises(DownloadError, match="is not https"):
        fetch_text(url)


def test_a_text_that_never_ends_is_refused(server: ReleaseServer) -> None:
    server.files["checksums.txt"] = b"x" * (2 << 20)
    with pytest.raises(DownloadError, match="larger than"):
        fetch_text(server.url + "checksums.txt")
