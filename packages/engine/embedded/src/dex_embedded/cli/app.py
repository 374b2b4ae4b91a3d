"""The command line: parsing, and errors as one line on stderr.

Exit codes: 0 done, 1 it failed, 2 it was called wrongly.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dex_embedded._open import NotLoopbackError
from dex_embedded._runtime.engine import DRAIN_SECONDS
from dex_embedded._store.errors import StoreError, StoreInUseError
from dex_embedded._wire.client import CallFailedError, EngineTarget
from dex_embedded.cli import database, flows
from dex_embedded.cli.bounds import bounds_of
from dex_embedded.cli.dev import serve_until_stopped
from dex_embedded.cli.logs import LogFormat, LogLevel, set_up_logging

DEFAULT_PORT = 8801
DEFAULT_DATA_DIR = Path(".dex")

app = typer.Typer(
    help="An engine for durable Flows in one process and one file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
flow_app = typer.Typer(help="Look at the flows of a running engine.", no_args_is_help=True)
app.add_typer(flow_app, name="flow")
db_app = typer.Typer(help="Check, back up and prune a data file.", no_args_is_help=True)
app.add_typer(db_app, name="db")

Server = Annotated[
    str,
    typer.Option(
        "--server", envvar="DEX_FLOW_SERVICE_ADDRESS", help="Address of the engine, host:port."
    ),
]
ServerTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="DEX_EMBEDDED_TOKEN_FILE",
        help="A file with the access token the engine asks for.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder of the data file.")]
FlowId = Annotated[str, typer.Argument(help="The flow's id.")]
DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"


def main() -> None:
    """Runs the command line."""
    app()


@app.command()
def dev(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Folder of the data file; made if missing.")
    ] = DEFAULT_DATA_DIR,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = (
        DEFAULT_PORT
    ),
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback needs a token file.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="Let in only calls that carry one of the access tokens in this file.",
        ),
    ] = None,
    relaxed: Annotated[
        bool,
        typer.Option(
            "--relaxed",
            help="Do not flush the disk at every commit: a power cut may lose the last ones.",
        ),
    ] = False,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds", min=0, max=3600, help="How long running tasks may take at the end."
        ),
    ] = DRAIN_SECONDS,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="NAME=NUMBER",
            help="What it holds in memory at most, such as queued_tasks=1000; repeatable. "
            "An unknown name shows all of them.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Form of the log on stderr.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is logged.")
    ] = LogLevel.WARNING,
    as_json: AsJson = False,
) -> None:
    """Serve an engine until it is stopped (Ctrl-C or SIGTERM)."""

    def announce(address: str, data_file: Path, pid: int) -> None:
        if as_json:
            ready = {"address": address, "pid": pid, "data_file": str(data_file)}
            print(json.dumps(ready), flush=True)
        else:
            print(f"Dex engine ready at {address}\nData file: {data_file}", flush=True)

    try:
        bounds = bounds_of(bound or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bound") from None
    set_up_logging(log_format, log_level)
    _run(
        serve_until_stopped(
            data_dir,
            host,
            port,
            token_file=token_file,
            synchronous="NORMAL" if relaxed else "FULL",
            drain_seconds=drain_seconds,
            bounds=bounds,
            announce=announce,
        )
    )


@flow_app.command("list")
def list_flows(
    query: Annotated[str, typer.Option(help="A search query; all flows without one.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most flows to show.")] = 100,
    server: Server = DEFAULT_SERVER,
    token_file: ServerTokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List flows, the newest first."""
    _run(flows.list_flows(EngineTarget(server, token_file), query, limit, as_json=as_json))


@flow_app.command("history")
def history(
    flow_id: FlowId,
    run_id: Annotated[str, typer.Option(help="A run; the latest without one.")] = "",
    server: Server = DEFAULT_SERVER,
    token_file: ServerTokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened in a flow: one line per Step method, with attempts and durations."""
    _run(flows.show_history(EngineTarget(server, token_file), flow_id, run_id, as_json=as_json))


@flow_app.command("show")
def show(
    flow_id: FlowId,
    server: Server = DEFAULT_SERVER,
    token_file: ServerTokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a flow's type, status and times."""
    _run(flows.show_summary(EngineTarget(server, token_file), flow_id, as_json=as_json))


@flow_app.command("state")
def state(
    flow_id: FlowId, server: Server = DEFAULT_SERVER, token_file: ServerTokenFile = None
) -> None:
    """Print a flow's attributes, active Steps and pending messages as JSON."""
    _run(flows.show_state(EngineTarget(server, token_file), flow_id))


@flow_app.command("stop")
def stop(
    flow_id: FlowId,
    stop_type: Annotated[str, typer.Option("--type", help="cancel, terminate or fail.")] = "cancel",
    reason: Annotated[str, typer.Option(help="Kept with the flow.")] = "",
    server: Server = DEFAULT_SERVER,
    token_file: ServerTokenFile = None,
) -> None:
    """Stop a running flow."""
    if stop_type not in flows.STOP_TYPES:
        raise typer.BadParameter("must be cancel, terminate or fail", param_hint="--type")
    _run(flows.stop_flow(EngineTarget(server, token_file), flow_id, stop_type, reason))


@db_app.command("check")
def check(data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> None:
    """Look for damage in the data file of a stopped engine; changes nothing."""
    with _errors_in_one_line():
        if not database.check(data_dir, as_json=as_json):
            raise SystemExit(1)


@db_app.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(help="The copy: a file that does not exist yet.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy the data file, also while an engine runs on it."""
    with _errors_in_one_line():
        database.backup(data_dir, target, as_json=as_json)


@db_app.command("prune")
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Age of the runs to remove, such as 30d or 12h.")
    ],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Give the space back; rewrites the whole file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove closed runs, with their histories, from the data file of a stopped engine."""
    try:
        age = database.seconds_of(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    with _errors_in_one_line():
        database.prune(data_dir, age, dry_run=dry_run, compact=compact, as_json=as_json)


def _run(work: Coroutine[Any, Any, None]) -> None:
    with _errors_in_one_line():
        asyncio.run(work)


@contextmanager
def _errors_in_one_line() -> Generator[None]:
    try:
        yield
    except StoreInUseError as error:
        _fail(f"{error}; stop it first (only a backup can be taken meanwhile)")
    except (NotLoopbackError, StoreError, CallFailedError, OSError, ValueError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _fail(message: str) -> NoReturn:
    print(f"dex-embedded: {message}", file=sys.stderr)
    raise SystemExit(1)
