from __future__ import annotations

from pathlib import Path

import pytest
from release_server import write_dexcli

from tools.engine.install import installed_program
from tools.engine.probe import dev_flags, version_of
from tools.engine.release import Release
from tools.engine.resolve import Choice, Fetch, resolve
from tools.errors import ToolError

RELEASE = Release("1.2.3", "https://host.example/", {})
PLATFORM = "linux_amd64"


class Places:
    """The places an engine is looked for in, each filled by a method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.environment = {"PATH": str(folder / "bin")}
        self.fetch: Fetch | None = None

    def name_in_environment(self, **told: object) -> Path:
        program = write_dexcli(self.folder / "named", version="1.0.1", **told)
        self.environment["DEXCLI"] = str(program)
        return program

    def put_on_path(self, **told: object) -> Path:
        return write_dexcli(self.folder / "bin", **{"version": "1.0.2", **told})

    def put_in_cache(self, **told: object) -> Path:
        folder = installed_program(self.cache, RELEASE, PLATFORM).parent
        return write_dexcli(folder, **told)

    def offer_download(self) -> Path:
        program = write_dexcli(self.folder / "fetched")

        def fetch() -> tuple[Path, str]:
            return program, "pinned"

        self.fetch = fetch
        return program

    def resolve(self, platform: str | None = PLATFORM) -> Choice:
        return resolve(RELEASE, platform, self.cache, self.fetch, self.environment)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_places_are_tried_in_order_and_the_reasons_say_so(places: Places) -> None:
    assert places.resolve().line == "embedded"
    downloaded = places.offer_download()
    assert places.resolve().program == downloaded
    cached = places.put_in_cache()
    assert places.resolve().program == cached
    on_path = places.put_on_path()
    assert places.resolve().program == on_path
    named = places.name_in_environment()
    choice = places.resolve()
    assert (choice.line, choice.version) == (str(named), "1.0.1")
    assert choice.explanation() == "using dexcli 1.0.1: DEXCLI names it"


def test_the_explanation_names_every_place_that_was_passed_over(places: Places) -> None:
    places.put_on_path(code=1)
    places.put_in_cache(code=1)
    first, second, third, fourth, last = places.resolve().explanation().splitlines()
    assert first == "DEXCLI is not set"
    assert second.startswith("the one on PATH does not work: ")
    assert third.startswith("the one downloaded before does not work: ")
    assert fourth == "nothing may be downloaded now"
    assert last == "using the embedded engine: nothing else is there"


def test_a_failed_download_is_a_reason_not_the_end(places: Places) -> None:
    def fetch() -> tuple[Path, str]:
        raise ToolError("no network")

    places.fetch = fetch
    choice = places.resolve()
    assert choice.program is None
    assert choice.passed_over[-1] == "downloading failed: no network"


def test_a_machine_without_a_release_is_left_with_the_embedded_engine(places: Places) -> None:
    places.offer_download()
    choice = places.resolve(platform=None)
    assert choice.program is None
    assert "no dexcli is released for this kind of machine" in choice.passed_over


def test_what_dexcli_names_is_never_passed_over(places: Places, tmp_path: Path) -> None:
    places.put_on_path()
    places.environment["DEXCLI"] = str(tmp_path / "gone")
    with pytest.raises(ToolError, match="gone, which is no program"):
        places.resolve()
    places.name_in_environment(code=1)
    with pytest.raises(ToolError, match="failed with code 1"):
        places.resolve()


def test_a_bare_name_in_dexcli_is_looked_up_on_path(places: Places) -> None:
    program = places.put_on_path()
    places.environment["DEXCLI"] = "dexcli"
    assert places.resolve().program == program


def test_the_options_of_a_program_are_those_its_help_lists(tmp_path: Path) -> None:
    program = write_dexcli(tmp_path, flags=["--dex-port", "--engine"])
    assert dev_flags(program) == {"--dex-port", "--engine"}
    assert version_of(program) == "1.2.3"
    with pytest.raises(ToolError, match="lists no option"):
        dev_flags(write_dexcli(tmp_path, flags=[]))


def test_a_program_that_says_no_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="names no version"):
        version_of(write_dexcli(tmp_path, version="dev"))
