"""FlowService: one short method per call, from request message to engine and back.

A call that is not here is answered UNIMPLEMENTED by name; see `dex_embedded._wire.server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dex.dexpb import dex_pb2 as pb
from google.protobuf import empty_pb2

from dex_embedded._kernel.inputs import SkipTimer, StartFlow, StopFlow, UpdateConfig
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.values import (
    Durability,
    IdReusePolicy,
    IndexType,
    MessageDeletion,
    StopType,
)
from dex_embedded._runtime.call_errors import invalid
from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.rpc_work import RpcRequest
from dex_embedded._runtime.stream_log import StreamIdentity
from dex_embedded._store.protocol import StreamMessage, StreamScope
from dex_embedded._wire import attribute_match, decode, flow_state, history, search_results
from dex_embedded._wire.enums import proto_enum
from dex_embedded._wire.flow_config import check_config, merge_config

_EMPTY: Final = empty_pb2.Empty()
_MINIMUM_PROTOCOL: Final = 1
_CURRENT_PROTOCOL: Final = 3


class FlowService:
    """The calls this engine serves. Names are those of the protocol."""

    def __init__(self, engine: Engine, version: str) -> None:
        self._engine = engine
        self._version = version

    # --- the server itself -----------------------------------------------------------------------

    async def get_server_info(self, _request: empty_pb2.Empty) -> pb.ServerInfo:
        return pb.ServerInfo(
            server_version=f"dex-embedded {self._version}",
            minimum_supported_protocol_version=_MINIMUM_PROTOCOL,
            current_protocol_version=_CURRENT_PROTOCOL,
        )

    async def health_check(self, _request: empty_pb2.Empty) -> pb.HealthInfo:
        return pb.HealthInfo(condition="OK")

    async def sync_attribute_indexes(
        self, request: pb.SyncAttributeIndexRequest
    ) -> pb.SyncAttributeIndexResponse:
        types = {
            key: decode.decode_enum(IndexType, number)
            for key, number in request.attribute_indexes.items()
        }
        if types:
            await self._engine.flows.declare_indexes(types)
        return pb.SyncAttributeIndexResponse()

    async def load_blobs(self, _request: pb.LoadBlobsRequest) -> pb.LoadBlobsResponse:
        # Values travel inline, so there is never a blob to load.
        return pb.LoadBlobsResponse()

    # --- flows -----------------------------------------------------------------------------------

    async def start_flow(self, request: pb.StartFlowRequest) -> pb.StartFlowResponse:
        options = request.flow_start_options
        config = options.flow_config_override
        check_config(config)
        start = StartFlow(
            flow_id=request.flow_id,
            flow_type=request.flow_type,
            request_id=request.request_id,
            id_reuse_policy=decode.decode_enum(IdReusePolicy, options.id_reuse_policy),
            ignore_already_started=(
                options.flow_already_started_options.ignore_already_started_error
            ),
            start_step_type=request.start_step_type,
            start_step_input=decode.decode_value(request.step_input, "start step input")
            if request.HasField("step_input")
            else decode.NULL_VALUE,
            start_step_options=decode.decode_step_options(request.step_options.SerializeToString()),
            start_delay=options.flow_start_delay_seconds,
            attributes=decode.decode_attribute_writes(options.attributes),
            config=config.SerializeToString(),
            default_durability=decode.decode_enum(Durability, config.step_durability),
            timeout=request.flow_timeout_seconds,
            has_retry_policy=options.HasField("retry_policy"),
            has_timeout_handler=options.HasField("timeout_handler_options"),
        )
        return pb.StartFlowResponse(run_id=await self._engine.flows.start(start))

    async def stop_flow(self, request: pb.StopFlowRequest) -> empty_pb2.Empty:
        stop = StopFlow(type=decode.decode_enum(StopType, request.stop_type), reason=request.reason)
        await self._engine.flows.stop(request.flow_id, request.run_id, stop)
        return _EMPTY

    async def get_flow_summary(
        self, request: pb.GetFlowSummaryRequest
    ) -> pb.GetFlowSummaryResponse:
        summary = await self._engine.flows.summary(request.flow_id, request.run_id)
        return search_results.encode_summary(summary)

    async def wait_for_flow(self, request: pb.WaitForFlowRequest) -> pb.FlowResult:
        result = await self._engine.flows.wait_for_close(
            request.flow_id, request.run_id, request.wait_time_seconds
        )
        reply = pb.FlowResult(
            flow_status=history.flow_status(result.status),
            error_type=proto_enum(pb.FlowErrorType, result.error_type),
            error_message=result.error_message,
        )
        if request.needs_results:
            reply.results.extend(history.encode_output(output) for output in result.outputs)
        return reply

    async def get_flow_state(self, request: pb.GetFlowStateRequest) -> pb.GetFlowStateResponse:
        return await self._engine.flows.read(
            request.flow_id, request.run_id, flow_state.encode_flow_state
        )

    async def search_flows(self, request: pb.SearchFlowsRequest) -> pb.SearchFlowsResponse:
        page = self._engine.flows.search(
            request.query,
            request.page_size,
            request.next_page_token,
            request.include_continued_as_new,
        )
        return search_results.encode_search_page(page)

    # --- waits -----------------------------------------------------------------------------------

    async def wait_for_step_completion(
        self, request: pb.WaitForStepCompletionRequest
    ) -> pb.WaitForStepCompletionResponse:
        number = request.step_execution_number
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise invalid("step_execution_number must be a positive number")
        await self._engine.flows.wait_for_step(
            request.flow_id, request.step_type, int(number), request.request_timeout_seconds
        )
        return pb.WaitForStepCompletionResponse()

    async def wait_for_attribute(
        self, request: pb.WaitForAttributeRequest
    ) -> pb.WaitForAttributeResponse:
        matches = attribute_match.matcher_of(request.match)
        value = await self._engine.flows.wait_for_attribute(
            request.flow_id, request.match.key, matches, request.request_timeout_seconds
        )
        return pb.WaitForAttributeResponse(matched_value=pb.Value.FromString(value))

    # --- RPCs, attributes, channels --------------------------------------------------------------

    async def invoke_rpc(self, request: pb.InvokeRPCRequest) -> pb.InvokeRPCResponse:
        if not request.flow_id or not request.rpc_name or not request.request_id:
            raise invalid("InvokeRPC needs a flow id, an RPC name and a request id")
        if request.timeout_seconds < 0:
            raise invalid("timeout_seconds is negative")
        output = await self._engine.rpcs.invoke(
            RpcRequest(
                flow_id=request.flow_id,
                run_id=request.run_id,
                rpc_name=request.rpc_name,
                request_id=request.request_id,
                input=decode.decode_value(request.input, "RPC input")
                if request.HasField("input")
                else decode.NULL_VALUE,
                timeout=request.timeout_seconds,
                lock_keys=decode.decode_lock_keys(request.lock_attribute_keys),
                transactional=request.is_transactional,
                selection=decode.decode_selection(
                    request.load_attribute_map_instances,
                    request.load_channel_names,
                    request.load_channel_map_instances,
                ),
            )
        )
        response = pb.InvokeRPCResponse()
        if output is not None:
            response.output.MergeFromString(output)
        return response

    async def get_attributes(self, request: pb.GetAttributesRequest) -> pb.GetAttributesResponse:
        keys = None if request.all_keys else frozenset(request.keys)
        pairs = await self._engine.flows.read(
            request.flow_id,
            request.run_id,
            lambda run: flow_state.encode_attributes(run.attributes, keys),
        )
        return pb.GetAttributesResponse(attributes=pairs)

    async def set_attributes(self, request: pb.SetAttributesRequest) -> empty_pb2.Empty:
        if not request.request_id:
            raise invalid("SetAttributes needs a request id")
        await self._engine.flows.set_attributes(
            request.flow_id,
            request.run_id,
            decode.decode_attribute_writes(request.attributes),
            request.request_id,
        )
        return _EMPTY

    async def publish_to_channel(self, request: pb.PublishToChannelRequest) -> empty_pb2.Empty:
        await self._engine.flows.publish(
            request.flow_id, request.run_id, decode.decode_publications(request.messages)
        )
        return _EMPTY

    async def get_channel_messages(
        self, request: pb.GetChannelMessagesRequest
    ) -> pb.GetChannelMessagesResponse:
        messages = await self._engine.flows.read(
            request.flow_id,
            request.run_id,
            lambda run: flow_state.encode_pending(run.channels.get(request.channel_name, ())),
        )
        return pb.GetChannelMessagesResponse(messages=messages)

    async def delete_channel_message(
        self, request: pb.DeleteChannelMessageRequest
    ) -> empty_pb2.Empty:
        if not request.request_id:
            raise invalid("DeleteChannelMessage needs a request id")
        await self._engine.flows.delete_message(
            request.flow_id,
            request.run_id,
            MessageDeletion(channel=request.channel_name, message_id=request.message_id),
            request.request_id,
        )
        return _EMPTY

    async def skip_timer(self, request: pb.SkipTimerRequest) -> empty_pb2.Empty:
        index = request.timer_condition_index if request.HasField("timer_condition_index") else None
        if (index is None) == (not request.timer_condition_id):
            raise invalid("SkipTimer needs either timer_condition_id or timer_condition_index")
        skip = SkipTimer(
            step_execution_id=request.step_execution_id,
            condition_id=request.timer_condition_id,
            index=index,
        )
        await self._engine.flows.skip_timer(request.flow_id, request.run_id, skip)
        return _EMPTY

    async def update_flow_config(self, request: pb.UpdateFlowConfigRequest) -> empty_pb2.Empty:
        change = request.flow_config
        check_config(change)

        def merge(run: FlowRun) -> UpdateConfig:
            return merge_config(run.config, change)

        await self._engine.flows.update_config(request.flow_id, request.run_id, merge)
        return _EMPTY

    async def trigger_continue_as_new(
        self, request: pb.TriggerContinueAsNewRequest
    ) -> empty_pb2.Empty:
        # A run here is never too long, so there is nothing to do but to check that it is active.
        await self._engine.flows.check_active(request.flow_id, request.run_id)
        return _EMPTY

    # --- streams ---------------------------------------------------------------------------------

    async def write_stream(self, request: pb.WriteStreamRequest) -> empty_pb2.Empty:
        if not request.source:
            raise invalid("WriteStream needs a source")
        if request.stream_capacity_bytes <= 0:
            raise invalid("stream_capacity_bytes must be positive")
        await self._engine.streams.write(
            _stream(request.flow_id, request.flow_type, request.stream_name),
            decode.decode_value(request.value, "stream message"),
            request.source,
            request.stream_capacity_bytes,
        )
        return _EMPTY

    async def read_stream(self, request: pb.ReadStreamRequest) -> pb.ReadStreamResponse:
        stream = _stream(request.flow_id, request.flow_type, request.stream_name)
        message = await self._engine.streams.read(
            stream, request.resume_token, request.wait_time_seconds
        )
        return pb.ReadStreamResponse(message=_stream_message(stream, message))

    async def list_stream_messages(
        self, request: pb.ListStreamMessagesRequest
    ) -> pb.ListStreamMessagesResponse:
        stream = _stream(request.flow_id, request.flow_type, request.stream_name)
        page = self._engine.streams.list(stream, request.page_size, request.before_page_token)
        return pb.ListStreamMessagesResponse(
            messages=[_stream_message(stream, message) for message in page.messages],
            next_page_token=page.next_token,
        )

    # --- history ---------------------------------------------------------------------------------

    async def get_history_events(
        self, request: pb.GetHistoryEventsRequest
    ) -> pb.GetHistoryEventsResponse:
        if request.start_internal_event_id < 0 or request.estimate_page_size < 0:
            raise invalid("start_internal_event_id and estimate_page_size must not be negative")
        start = request.start_internal_event_id
        if request.next_page_token:
            start = _page_start(request.next_page_token)
        flows = self._engine.flows
        page = await flows.history(
            request.flow_id, request.run_id, start, request.estimate_page_size
        )

        def values_of(versions: Sequence[int]) -> dict[int, bytes]:
            return dict(flows.attribute_values(page.run.key, versions))

        events = history.restore_events((event.payload for event in page.events), values_of)
        kept = history.fitting(events)
        next_id = kept[-1].event_id + 1 if len(kept) < len(events) else page.next_event_id
        at_end = page.at_end and len(kept) == len(events)
        return pb.GetHistoryEventsResponse(
            events=kept,
            next_page_token=b"" if at_end else str(next_id).encode(),
            next_internal_event_id=next_id,
        )

    async def wait_for_history_event(
        self, request: pb.WaitForHistoryEventRequest
    ) -> pb.WaitForHistoryEventResponse:
        if request.next_internal_event_id < 1:
            raise invalid("next_internal_event_id must be positive")
        news = await self._engine.flows.wait_for_event(
            request.flow_id, request.run_id, request.next_internal_event_id
        )
        return pb.WaitForHistoryEventResponse(
            event_available=news.available,
            available_internal_event_id=news.event_id,
            flow_status=history.flow_status(news.status),
        )


def _stream(flow_id: str, flow_type: str, stream_name: str) -> StreamIdentity:
    if not flow_id or not flow_type or not stream_name:
        raise invalid("a stream is named by flow id, flow type and stream name")
    return StreamIdentity(StreamScope(flow_type=flow_type, stream_name=stream_name), flow_id)


def _stream_message(stream: StreamIdentity, message: StreamMessage) -> pb.StreamMessage:
    encoded = pb.StreamMessage(
        value=pb.Value.FromString(message.value),
        resume_token=stream.token(message.id),
        source=message.source,
    )
    encoded.created_time.FromNanoseconds(int(message.created_at * 1e9))
    return encoded


def _page_start(token: bytes) -> int:
    if not token.isdigit():
        raise invalid("next_page_token is malformed")
    return int(token)
