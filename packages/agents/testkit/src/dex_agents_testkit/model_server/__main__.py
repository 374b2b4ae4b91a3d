"""`python -m dex_agents_testkit.model_server`: serve a script until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence

from dex_agents_testkit._script_fields import ScriptError
from dex_agents_testkit.model_server.script import load_model_script
from dex_agents_testkit.model_server.serving import LOOPBACK, serve_model_script


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except (ScriptError, ValueError, OSError) as error:
        print(f"model server: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dex_agents_testkit.model_server",
        description="Serve a scripted model with the OpenAI wire format on a loopback address.",
    )
    parser.add_argument("--script", required=True, help="the script file (JSON)")
    parser.add_argument("--host", default=LOOPBACK, help="a loopback address (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port (%(default)s)")
    parser.add_argument("--requests-log", help="append one JSON line per request to this file")
    parser.add_argument("--gates-dir", help="folder for the marks of `hold` faults")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object when ready: base_url, port, pid"
    )
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop when standard input closes, so that the server never outlives its starter",
    )
    return parser


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if options.stop_with_stdin:
        await loop.connect_read_pipe(lambda: _StopAtEnd(stop), sys.stdin)
    async with serve_model_script(
        load_model_script(options.script),
        host=options.host,
        port=options.port,
        requests_log=options.requests_log,
        gates_dir=options.gates_dir,
    ) as server:
        if options.json:
            ready = {"base_url": server.base_url, "port": server.port, "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
        else:
            print(f"Scripted model on {server.base_url} (Ctrl-C stops it)", flush=True)
        await stop.wait()


class _StopAtEnd(asyncio.Protocol):
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop.set()


if __name__ == "__main__":
    raise SystemExit(main())
