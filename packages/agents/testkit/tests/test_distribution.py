from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata, resources


def test_type_checkers_see_the_types_of_this_package() -> None:
    assert resources.files("dex_agents_testkit").joinpath("py.typed").is_file()


def test_the_distribution_names_its_licence_and_ships_the_text() -> None:
    found = metadata.metadata("dex-agents-testkit")
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE"]


def test_the_kit_requires_no_agent_framework_and_one_http_server() -> None:
    required = metadata.requires("dex-agents-testkit") or []
    names = {re.split(r"[^\w-]", text, maxsplit=1)[0] for text in required}
    assert names == {"dex-agents", "hypothesis", "pytest", "starlette", "uvicorn"}


def test_every_part_of_the_kit_is_imported_without_an_agent_framework() -> None:
    program = (
        "import sys; sys.modules.update(agents=None, openai=None, httpx=None, httpx2=None)\n"
        "import dex_agents_testkit.conformance, dex_agents_testkit.faults.worker\n"
        "import dex_agents_testkit.histories, dex_agents_testkit.model_server\n"
        "import dex_agents_testkit.pytest_plugin, dex_agents_testkit.scripted_worker\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
