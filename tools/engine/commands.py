"""The commands `tools engine ...`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType

from tools.commands import Commands, in_environment
from tools.console import say
from tools.engine.download import fetch_text
from tools.engine.install import cache_folder, install
from tools.engine.release import (
    CHECKSUMS,
    RELEASE_FILE,
    Release,
    parse_checksums,
    read_release,
    release_text,
    this_platform,
)
from tools.engine.resolve import Choice, resolve
from tools.errors import ToolError

ADDRESS_VARIABLE = "DEX_FLOW_SERVICE_ADDRESS"


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    engine = commands.group("engine", "find, fetch, start and stop the engine that tests use")

    text = "print the engine a test run uses, in one line: a program's path, or `embedded`"
    added = engine.add("resolve", in_environment(_resolve), text)
    _add_choice(added)
    added.add_argument("--explain", action="store_true", help="say on stderr why")

    text = "download the pinned reference engine, where it is not there yet; print its path"
    engine.add("fetch", in_environment(_fetch), text)

    text = "start the engine, print its address in one line, stop it on Ctrl+C or SIGTERM"
    added = engine.add("start", in_environment(_start), text)
    _add_choice(added)
    added.add_argument("--port", type=int, help="a free one when left out")
    added.add_argument("--data-dir", type=Path, help="a temporary one when left out")

    text = f"run the command after `--` with {ADDRESS_VARIABLE} naming a fresh engine"
    added = engine.add("run", in_environment(_run), text)
    _add_choice(added)

    text = "run all tests on the reference engine where it can be had, else say why not"
    engine.add("test", in_environment(_test), text)

    text = "pin a release: write its version and checksums into release.toml"
    added = engine.add("pin", in_environment(_pin), text)
    added.add_argument("version")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="download nothing")
    parser.add_argument(
        "--require-reference", action="store_true", help="fail where only the embedded one is left"
    )


def _choose(parsed: argparse.Namespace) -> Choice:
    release = read_release()
    cache = cache_folder()
    try:
        platform = this_platform()
    except ToolError:
        platform = None

    def fetch() -> tuple[Path, str]:
        assert platform is not None  # resolve fetches only where there is an asset
        return _install(release, platform, cache)

    choice = resolve(release, platform, cache, None if parsed.offline else fetch)
    if parsed.require_reference and choice.program is None:
        raise ToolError("no reference engine:\n" + "\n".join(choice.passed_over))
    return choice


def _install(release: Release, platform: str, cache: Path) -> tuple[Path, str]:
    from tools.engine.progress import progress_bar

    with progress_bar(f"dexcli {release.version}") as progress:
        return install(cache, release, platform, progress)


def _resolve(_: Path, parsed: argparse.Namespace) -> int:
    choice = _choose(parsed)
    if parsed.explain:
        for line in choice.explanation().splitlines():
            say(line)
    print(choice.line)
    return 0


def _fetch(_: Path, __: argparse.Namespace) -> int:
    program, origin = _install(read_release(), this_platform(), cache_folder())
    say(f"its checksum was {origin}")
    print(program)
    return 0


def _start(root: Path, parsed: argparse.Namespace) -> int:
    from tools.engine.process import running

    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    choice = _choose(parsed)
    say(choice.explanation().splitlines()[-1])
    with running(choice, _embedded(root), parsed.data_dir, parsed.port) as engine:
        _check(engine.address)
        print(engine.address, flush=True)
        while not stopped.wait(0.5):
            if engine.ended():
                raise ToolError("the engine ended by itself")
    return 0


def _run(root: Path, parsed: argparse.Namespace) -> int:
    from tools.engine.process import running

    if not parsed.after_dashes:
        raise ToolError("say what to run: `python3 -m tools engine run -- COMMAND`")
    choice = _choose(parsed)
    say(choice.explanation().splitlines()[-1])
    with running(choice, _embedded(root)) as engine:
        _check(engine.address)
        env = {**os.environ, ADDRESS_VARIABLE: engine.address}
        try:
            return subprocess.run(parsed.after_dashes, env=env).returncode
        except OSError as error:
            raise ToolError(f"{parsed.after_dashes[0]} cannot be run: {error.strerror}") from error


def _test(root: Path, _: argparse.Namespace) -> int:
    from tools.checks import run_tests

    choice = _choose(argparse.Namespace(offline=False, require_reference=False))
    for line in choice.explanation().splitlines():
        say(line)
    if choice.program is None:
        say("no reference engine can be had here, so nothing was tested on one")
        return 0
    return run_tests(root, {"DEXCLI": str(choice.program)})


def _pin(_: Path, parsed: argparse.Namespace) -> int:
    old = RELEASE_FILE.read_text(encoding="utf-8")
    release = read_release()
    url = release.url.replace(release.version, parsed.version)
    text = release_text(parsed.version, parse_checksums(fetch_text(url + CHECKSUMS)), old=old)
    RELEASE_FILE.write_text(text, encoding="utf-8")
    say(f"{RELEASE_FILE.name} pins {parsed.version}")
    return 0


def _check(address: str) -> None:
    from tools.engine.protocol import ask_server

    info = ask_server(address)
    problem = info.problem()
    if problem is not None:
        raise ToolError(problem)
    say(f"engine {info.version} speaks protocol {info.lowest}..{info.current}")


def _embedded(root: Path) -> Path:
    return root / ".venv/bin/dex-embedded"
