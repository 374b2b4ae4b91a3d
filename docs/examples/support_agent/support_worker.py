"""The worker process: runs the model calls and the tools of every support session.

It keeps nothing that matters. Kill it at any moment and start another one, here or elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio

from support_agents import build_flow

from dex_agents.local import open_sessions


async def serve(server_address: str, model: str | None, or_end_of_input: bool) -> None:
    """Serve support sessions until the process is told to stop."""
    async with open_sessions(
        build_flow(model), server_address=server_address, connect=False
    ) as app:
        print("worker ready", flush=True)
        await app.serve_until_signal(or_end_of_input=or_end_of_input)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="address of the engine, host:port")
    parser.add_argument("--model", help="name of the model")
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="also stop when standard input closes, that is with the process that started this one",
    )
    options = parser.parse_args()
    asyncio.run(serve(options.server, options.model, options.stop_with_stdin))
