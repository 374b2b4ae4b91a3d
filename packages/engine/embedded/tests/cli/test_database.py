"""The `db` commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_testing.probe import Script
from engine_testing.process import engine_process
from engine_testing.world import open_world
from typer.testing import CliRunner

from dex_embedded.cli.app import app
from dex_embedded.cli.database import seconds_of


def db(*args: object) -> tuple[int, str, str]:
    """Runs a `db` command in this process; returns exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["db", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


async def test_a_running_engine_can_be_backed_up_and_is_not_checked_or_pruned(
    tmp_path: Path,
) -> None:
    data, copy = tmp_path / "data", tmp_path / "restored" / "dex.sqlite3"
    copy.parent.mkdir()
    script = Script()
    async with (
        engine_process(data) as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script, "kept")
        await world.result(script)
        code, out, _ = db("backup", copy, "--data-dir", data, "--json")
        assert code == 0
        assert json.loads(out) == {"target": str(copy), "size": copy.stat().st_size}
        for command in (
            ("check",),
            ("prune", "--older-than", "0s"),
            ("prune", "--older-than", "1d", "--dry-run"),
        ):
            code, _, err = db(*command, "--data-dir", data)
            assert code == 1
            assert f"process {engine.pid} is using it; stop it first" in err
        assert await world.start(Script(), "still served")
    code, out, _ = db("check", "--data-dir", copy.parent, "--json")
    report = json.loads(out)
    assert (code, report["problems"], report["closed_runs"]) == (0, [], 1)
    code, out, _ = db("prune", "--older-than", "0s", "--data-dir", copy.parent, "--dry-run")
    assert code == 0
    assert out.startswith("Would remove 1 runs")
    code, out, _ = db("prune", "--older-than", "0s", "--data-dir", copy.parent, "--json")
    pruned = json.loads(out)
    assert (code, pruned["runs"], pruned["dry_run"]) == (0, 1, False)
    code, _, err = db("backup", copy, "--data-dir", data)
    assert code == 1
    assert "exists, and is not overwritten" in err


async def test_problems_are_listed_and_end_with_exit_code_one(tmp_path: Path) -> None:
    async with engine_process(tmp_path):
        pass
    content = bytearray((tmp_path / "dex.sqlite3").read_bytes())
    content[4096 * 3 : 4096 * 4] = b"\xa5" * 4096
    (tmp_path / "dex.sqlite3").write_bytes(content)
    code, out, _ = db("check", "--data-dir", tmp_path)
    assert code == 1
    assert "- the file is damaged" in out


@pytest.mark.parametrize("command", [("check",), ("backup", "copy"), ("prune", "--older-than=1d")])
def test_a_folder_without_data_is_a_clear_error_and_stays_as_it_is(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    code, _, err = db(*command, "--data-dir", tmp_path)
    assert code == 1
    assert "dex.sqlite3: there is no such file" in err
    assert list(tmp_path.iterdir()) == []


def test_an_age_is_a_number_and_a_unit() -> None:
    ages = ("45s", "90m", "12h", "30d")
    assert [seconds_of(age) for age in ages] == [45, 5400, 43_200, 2_592_000]
    for wrong in ("", "30", "d", "-1d", "1.5h", "1w", "1d ", "9" * 30 + "d"):
        with pytest.raises(ValueError, match="30d"):
            seconds_of(wrong)
    code, _, err = db("prune", "--older-than", "soon")
    assert code == 2
    assert "--older-than" in err
