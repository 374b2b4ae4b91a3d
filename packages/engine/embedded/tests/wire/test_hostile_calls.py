"""Unary calls with any content: a status comes back, and the engine goes on."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_testing.hostile import messages
from engine_testing.threaded import engine_thread
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from dex_embedded._store.check import check_file
from dex_embedded._wire.server import REFUSED, SERVED

CALLS = sorted({*SERVED, *REFUSED})
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Statuses that say the engine itself has failed."""


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Generator[grpc.Channel]:
    """A channel to an engine with one flow, whose file is checked in the end."""
    folder = tmp_path_factory.mktemp("hostile")
    with engine_thread(folder) as address, grpc.insecure_channel(address) as made:
        start = pb.StartFlowRequest(
            flow_id="flow", flow_type="Probe", start_step_type="Start", request_id="first"
        )
        assert send(made, "StartFlow", start.SerializeToString()) is grpc.StatusCode.OK
        yield made
        assert send(made, "GetFlowSummary", _summary_of("flow")) is grpc.StatusCode.OK
    assert check_file(folder / "dex.sqlite3").problems == ()


def send(channel: grpc.Channel, name: str, payload: bytes, timeout: float = 20) -> grpc.StatusCode:
    method: Any = channel.unary_unary(f"/dex.FlowService/{name}")
    try:
        method(payload, timeout=timeout)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # pyright: ignore[reportAttributeAccessIssue]
        return code
    return grpc.StatusCode.OK


def _summary_of(flow_id: str) -> bytes:
    return pb.GetFlowSummaryRequest(flow_id=flow_id).SerializeToString()


@pytest.mark.parametrize("name", sorted(SERVED))
def test_a_request_with_any_content_gets_a_status(channel: grpc.Channel, name: str) -> None:
    @settings(max_examples=60)
    @given(messages(SERVED[name]), st.booleans())
    def run(request: Message, of_a_flow: bool) -> None:
        if of_a_flow and "flow_id" in request.DESCRIPTOR.fields_by_name:
            changed: Any = request
            changed.flow_id = "flow"
            if "run_id" in request.DESCRIPTOR.fields_by_name:
                changed.run_id = ""
        # Some of these calls wait, and are answered by their own deadline.
        assert send(channel, name, request.SerializeToString(), timeout=0.5) not in OURS

    run()
    assert send(channel, "HealthCheck", b"") is grpc.StatusCode.OK


@settings(max_examples=150)
@given(name=st.sampled_from(CALLS), payload=st.binary(max_size=60))
def test_bytes_that_are_no_request_get_a_status(
    channel: grpc.Channel, name: str, payload: bytes
) -> None:
    assert send(channel, name, payload, timeout=0.5) not in OURS


@pytest.mark.parametrize("name", sorted(set(SERVED) - {"GetServerInfo", "HealthCheck"}))
def test_a_request_that_cannot_be_decoded_is_told_so(channel: grpc.Channel, name: str) -> None:
    assert send(channel, name, b"\x0a\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_that_does_not_exist_is_refused_by_name(channel: grpc.Channel) -> None:
    for name in ("NoSuchCall", "", "ResetFlow", "../StartFlow", "startflow"):
        assert send(channel, name, b"") is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("size", [10_000, 1_000_000, 6_000_000])
def test_huge_names_and_values_are_refused_or_kept_and_never_harm(
    channel: grpc.Channel, size: int
) -> None:
    huge = "n" * size
    calls = (
        ("GetFlowSummary", pb.GetFlowSummaryRequest(flow_id=huge)),
        ("SearchFlows", pb.SearchFlowsRequest(query=huge, page_size=1)),
        ("SearchFlows", pb.SearchFlowsRequest(query="(" * size, page_size=1)),
        ("SearchFlows", pb.SearchFlowsRequest(query="NOT " * (size // 4), page_size=1)),
        ("StopFlow", pb.StopFlowRequest(flow_id=huge, reason=huge)),
        ("GetAttributes", pb.GetAttributesRequest(flow_id="flow", keys=[huge])),
        ("StartFlow", pb.StartFlowRequest(flow_id=f"{size}", flow_type=huge, request_id="r")),
        (
            "StartFlow",
            pb.StartFlowRequest(
                flow_id=f"{size}",
                flow_type="Probe",
                request_id="r",
                start_step_type="Start",
                step_input=pb.Value(string_value=huge),
            ),
        ),
    )
    for name, request in calls:
        assert send(channel, name, request.SerializeToString()) not in OURS, name
        assert send(channel, "HealthCheck", b"") is grpc.StatusCode.OK
