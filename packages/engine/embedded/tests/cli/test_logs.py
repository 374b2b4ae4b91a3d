"""The log of `dev`: its form, and that it never holds what users store."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    RPCResult,
    StartFlowOptions,
    StepDecision,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import EVENTS, INBOX, ITEMS, NOTE, PROBE, STATUS, Beta, Script
from engine_testing.process import start_engine
from engine_testing.world import open_world

from dex_embedded._runtime.log_fields import about
from dex_embedded.cli.logs import JsonFormatter, TextFormatter

VALUE = "value-of-a-user-8d1f"


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("dex_embedded", logging.ERROR, "x.py", 1, message, args, info)


def raised() -> ValueError:
    try:
        try:
            raise KeyError(VALUE)
        except KeyError as inner:
            raise ValueError(f"cannot read {VALUE}") from inner
    except ValueError as error:
        return error


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_an_exception_is_logged_by_type_and_place_alone(formatter: logging.Formatter) -> None:
    line = formatter.format(record("%s failed", "StartFlow", error=raised()))
    assert "StartFlow failed" in line
    assert "ValueError because of KeyError at test_logs.py:" in line
    assert VALUE not in line


def test_a_name_with_a_line_break_does_not_make_a_second_line() -> None:
    line = TextFormatter().format(record("flow %s: slow", "a\n2026-01-01 ERROR forged"))
    assert "\n" not in line
    assert "forged" in line
    assert "\n" not in JsonFormatter().format(record("flow %s: slow", "a\nb"))


def test_a_record_as_json_has_what_it_is_about_in_fields_of_their_own() -> None:
    about_step = record("flow %s: silent", "order-1")
    about_step.__dict__.update(about(flow_id="order-1", step="Charge-1"))
    fields = json.loads(JsonFormatter().format(about_step))
    assert (fields["flow_id"], fields["step"]) == ("order-1", "Charge-1")
    assert fields["message"] == "flow order-1: silent"


async def test_no_value_of_a_user_appears_in_the_most_detailed_log(tmp_path: Path) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, VALUE)
        STATUS.set(context, VALUE)
        ITEMS.set(context, "one", VALUE)
        INBOX.publish(context, VALUE)
        EVENTS.write(context, VALUE)
        return go_to(Beta, VALUE)

    async def beta(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt == 1:
            raise ValueError(f"cannot use {VALUE}")
        # Dropped, which is logged.
        EVENTS.write(context, VALUE * 10_000)
        return graceful_complete(VALUE)

    async def look(context: Context, given: str) -> RPCResult[str]:
        raise ValueError(f"cannot find {VALUE}")

    script = Script(execute={"Start": start, "Beta": beta}, rpc={"look": look})
    log: list[str] = []
    args = ("--log-format", "json", "--log-level", "debug")
    engine = await start_engine(tmp_path / "data", args=args, log=log)
    try:
        async with open_world(engine.address, tmp_path) as world, world.worker():
            await world.start(script, VALUE)
            assert (await world.result(script)).single_output(str) == VALUE
            with pytest.raises(DexServiceError):
                await world.client.search_flows(f"Nothing = '{VALUE}' AND (", 10)
            parked = Script(rpc={"look": look})
            await world.client.start_flow(
                PROBE, parked.flow_id, VALUE, StartFlowOptions(start_delay=timedelta(hours=1))
            )
            with pytest.raises(DexServiceError, match=VALUE):
                await world.call(PROBE.look, parked.flow_id, VALUE)
            write = pb.AttributeWrite(key="Note", value=pb.Value(string_value=VALUE))
            request = pb.SetAttributesRequest(flow_id=script.flow_id, attributes=[write])
            with pytest.raises(grpc.aio.AioRpcError):
                await world.stub.SetAttributes(request)
    finally:
        assert await engine.terminate() == 0
    records = [json.loads(line) for line in log]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    messages = [entry["message"] for entry in records]
    assert any(message.startswith("ready at") for message in messages)
    assert any(message.startswith("stopping") for message in messages)
    assert messages[-1] == "stopped"
    dropped = [entry for entry in records if "dropped a" in entry["message"]]
    assert [(entry["flow_id"], entry["stream"]) for entry in dropped] == [
        (script.flow_id, "Events")
    ]
    assert VALUE not in "".join(log)
