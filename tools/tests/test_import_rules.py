from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import write_sources

from tools.errors import ToolError
from tools.rules.imports import import_problems

CORE = "agents/core/src/dex_agents"
ADAPTER = "agents/openai-agents/src/dex_agents_openai_agents"
TESTKIT = "agents/testkit/src/dex_agents_testkit"
ENGINE = "engine/embedded/src/dex_embedded"


def problems_of(root: Path, file: str, text: str) -> list[str]:
    write_sources(root, {file: text})
    return import_problems(root)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (f"{ADAPTER}/runner.py", "from dex_agents.values import AgentState\n"),
        (f"{TESTKIT}/runner.py", "import dex_agents\n"),
        (f"{CORE}/client.py", "import dex\nfrom .values import AgentState\n"),
        (f"{CORE}/local.py", "async def open_it():\n    import dex_embedded\n"),
        (f"{CORE}/testing/engine.py", "def start():\n    from dex_embedded import open_engine\n"),
        (f"{TESTKIT}/engine.py", "def start():\n    from dex_embedded import open_engine\n"),
        (
            f"{CORE}/local.py",
            "import typing\nif typing.TYPE_CHECKING:\n    from dex_embedded import Engine\n",
        ),
        (f"{ENGINE}/_store/sql.py", "import sqlite3\n"),
        (f"{ENGINE}/_wire/server.py", "import grpc\nfrom dex.dexpb import dex_pb2_grpc\n"),
        (f"{ENGINE}/_runtime/loop.py", "import asyncio\nasyncio.create_task(f())\n"),
        (f"{ENGINE}/_kernel/decide.py", "from dex.dexpb import dex_pb2\nimport datetime\n"),
    ],
)
def test_what_the_architecture_allows_passes(tmp_path: Path, file: str, text: str) -> None:
    assert problems_of(tmp_path, file, text) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (f"{CORE}/a.py", "import dex_agents_openai_agents\n", "dex_agents must not import dex_"),
        (f"{CORE}/a.py", "from dex_agents_testkit import x\n", "dex_agents must not import dex_"),
        (f"{CORE}/a.py", "def f():\n    import dex_embedded\n", "must not import dex_embedded"),
        (f"{ADAPTER}/a.py", "import dex_agents_testkit\n", "it may import dex_agents"),
        (f"{ADAPTER}/a.py", "def f():\n    import dex_embedded\n", "must not import dex_embedded"),
        (f"{TESTKIT}/a.py", "import dex_agents_openai_agents\n", "it may import dex_agents"),
        (f"{ENGINE}/a.py", "def f():\n    import dex_agents\n", "no package of this repository"),
        (f"{CORE}/local.py", "import dex_embedded\n", "at import time"),
        (f"{TESTKIT}/a.py", "class A:\n    import dex_embedded\n", "at import time"),
        (f"{CORE}/locally.py", "def f():\n    import dex_embedded\n", "must not import"),
        ("agents/new/src/dex_agents_new/a.py", "", "has no entry in ARROWS"),
    ],
)
def test_an_import_against_the_arrows_is_a_problem_that_names_file_and_line(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    (found,) = problems_of(tmp_path, file, text)
    assert found.startswith(f"packages/{file}:")
    assert problem in found


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("_runtime/a.py", "import sqlite3\n", "only dex_embedded._store imports sqlite3"),
        ("cli.py", "def f():\n    import sqlite3\n", "only dex_embedded._store imports sqlite3"),
        ("_runtime/a.py", "from grpc import aio\n", "only dex_embedded._wire imports grpc"),
        ("_store/a.py", "from dex.dexpb import dex_pb2_grpc\n", "only dex_embedded._wire imports"),
        ("_wire/a.py", "import asyncio\nasyncio.create_task(f())\n", "calls create_task"),
        ("_store/a.py", "async def f():\n    async with TaskGroup() as g: ...\n", "TaskGroup"),
        ("_kernel/a.py", "import time\n", "must not import time"),
        ("_kernel/a.py", "from os import path\n", "must not import os"),
        ("_kernel/sub/a.py", "def f():\n    import random\n", "must not import random"),
        ("_kernel/a.py", "import datetime\nx = datetime.datetime.now()\n", "must not call now"),
        ("_kernel/a.py", "x = open('f')\n", "must not call open"),
        ("_kernel/a.py", "from .._runtime import x\n", "_kernel must not import _runtime"),
        ("_kernel/__init__.py", "from .._wire.codec import x\n", "_kernel must not import _wire"),
        ("_store/a.py", "from dex_embedded import _wire\n", "_store must not import _wire"),
    ],
)
def test_a_module_of_the_engine_outside_its_layer_is_a_problem(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    (found,) = problems_of(tmp_path, f"{ENGINE}/{file}", text)
    assert found.startswith(f"packages/{ENGINE}/{file}:")
    assert problem in found


@pytest.mark.parametrize(
    ("layer", "above"),
    [("_model", "_tools"), ("_stored", "_graph"), ("_tools", "_graph"), ("_graph", "_steps")],
)
def test_a_layer_of_the_adapter_knows_nothing_that_is_built_on_it(
    tmp_path: Path, layer: str, above: str
) -> None:
    (found,) = problems_of(tmp_path, f"{ADAPTER}/{layer}/a.py", f"from ..{above} import x\n")
    assert f"a.py:1: {layer} must not import {above}, which is built on it" in found


def test_a_tree_without_sources_is_refused_rather_than_passed(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no sources"):
        import_problems(tmp_path)


def test_a_file_that_does_not_parse_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"dex_agents/a\.py does not parse"):
        problems_of(tmp_path, f"{CORE}/a.py", "def\n")
