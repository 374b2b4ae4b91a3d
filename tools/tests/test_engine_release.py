from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tools.engine.release import (
    PLATFORMS,
    RELEASE_FILE,
    asset_name,
    parse_checksums,
    read_release,
    release_text,
    this_platform,
)
from tools.errors import ToolError

DIGESTS = {asset_name("1.2.3", name): f"{index}" * 64 for index, name in enumerate(PLATFORMS)}


def test_the_committed_release_is_valid_and_lies_at_its_own_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DEX_ENGINE_URL", raising=False)
    release = read_release()
    assert release.url.startswith("https://")
    assert release.url.endswith(f"/cli-v{release.version}/")


def test_a_mirror_takes_the_place_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEX_ENGINE_URL", "https://mirror.example/dex")
    assert read_release().url == "https://mirror.example/dex/"


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("Linux", "x86_64", "linux_amd64"),
        ("Linux", "aarch64", "linux_arm64"),
        ("Darwin", "arm64", "darwin_arm64"),
        ("Darwin", "x86_64", "darwin_amd64"),
    ],
)
def test_an_asset_is_named_after_the_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, name: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert this_platform() == name
    assert asset_name("1.2.3", name) == f"dexcli_v1.2.3_{name}.tar.gz"


def test_a_machine_without_an_asset_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(ToolError, match=r"there is no dexcli for windows_"):
        this_platform()


def test_checksums_are_read_in_both_common_forms() -> None:
    text = f"{'A' * 64}  one.tar.gz\n{'b' * 64} *two.tar.gz\nnot a line\n{'c' * 10}  three\n"
    assert parse_checksums(text) == {"one.tar.gz": "a" * 64, "two.tar.gz": "b" * 64}


def test_pinning_writes_a_file_that_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEX_ENGINE_URL", raising=False)
    path = tmp_path / "release.toml"
    path.write_text(release_text("1.2.3", DIGESTS, old=RELEASE_FILE.read_text()))
    release = read_release(path)
    assert release.version == "1.2.3"
    assert release.url.endswith("/cli-v1.2.3/")
    assert release.sha256 == {name: f"{index}" * 64 for index, name in enumerate(PLATFORMS)}


def test_pinning_a_release_that_lacks_a_platform_is_refused() -> None:
    listed = {name: digest for name, digest in DIGESTS.items() if "darwin_arm64" not in name}
    with pytest.raises(ToolError, match=r"lacks dexcli_v1\.2\.3_darwin_arm64"):
        release_text("1.2.3", listed, old=RELEASE_FILE.read_text())
    with pytest.raises(ToolError, match="three numbers"):
        release_text("latest", DIGESTS, old=RELEASE_FILE.read_text())


@pytest.mark.parametrize(
    "text",
    [
        'version = "latest"\nurl = "https://x.example/"\n',
        'version = "1.2.3"\n',
        'version = "1.2.3"\nurl = "https://x.example/"\n[sha256]\nlinux_amd64 = "short"\n',
        f'version = "1.2.3"\nurl = "https://x.example/"\n[sha256]\nplan9 = "{"0" * 64}"\n',
    ],
)
def test_a_file_that_describes_no_release_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "release.toml"
    path.write_text(text)
    with pytest.raises(ToolError, match=r"release\.toml"):
        read_release(path)
