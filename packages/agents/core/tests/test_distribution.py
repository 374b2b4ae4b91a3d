from __future__ import annotations

from importlib import metadata, resources


def test_type_checkers_see_the_types_of_this_package() -> None:
    assert resources.files("dex_agents").joinpath("py.typed").is_file()


def test_the_distribution_names_its_licence_and_ships_the_text() -> None:
    found = metadata.metadata("dex-agents")
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE"]
