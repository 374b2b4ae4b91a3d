"""A worker without an engine: it runs one Step of a Flow through the SDK's own dispatcher."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dex import Attribute, AttributeMap, CodecRegistry, Registry
from dex._async_worker_dispatcher import AsyncWorkerDispatcher
from dex._server_protocol import NegotiatedServerProtocol
from dex._value_mapper import ValueMapper
from dex.dexpb import dex_pb2 as pb

from dex_agents import AgentEvent, AgentSessionFlow, agent_codecs


class NoBlobs:
    """A hydrator for requests whose values are all inline."""

    async def execute_request(
        self, request: pb.InvokeExecuteMethodRequest
    ) -> pb.InvokeExecuteMethodRequest:
        return request

    async def wait_for_request(
        self, request: pb.InvokeWaitForMethodRequest
    ) -> pb.InvokeWaitForMethodRequest:
        return request

    async def rpc_request(self, request: pb.InvokeWorkerRPCRequest) -> pb.InvokeWorkerRPCRequest:
        return request


@dataclass
class StepRun:
    """What one Step did.

    Attributes:
        outputs: Names of everything it sent, in order: `heartbeat`, `stream_write`, `result`.
        next_steps: The movements of its decision.
        writes: Attributes it wrote; `None` for a deleted one.
        published: Channels it published to.
        events: Live events it wrote.
        waits: What its `wait_for` waits for.
        reply: What the RPC returned.
    """

    outputs: list[str] = field(default_factory=list[str])
    next_steps: list[pb.StepMovement] = field(default_factory=list[pb.StepMovement])
    writes: dict[str, Any] = field(default_factory=dict[str, Any])
    published: list[str] = field(default_factory=list[str])
    events: list[AgentEvent] = field(default_factory=list[AgentEvent])
    waits: pb.WaitingCondition = field(default_factory=pb.WaitingCondition)
    reply: Any = None


class FakeWorker:
    """Runs Steps of one Flow.

    Args:
        flow: The Flow.
    """

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._registry = Registry([flow], CodecRegistry(agent_codecs()), allow_async_handlers=True)
        self._flow_type = flow.get_flow_type()
        self._values = ValueMapper(self._registry.codec_registry)
        self._dispatcher = AsyncWorkerDispatcher(
            self._registry, self._values, cast(Any, NoBlobs()), NegotiatedServerProtocol()
        )
        self._definitions = self._registry._registered_flows[self._flow_type].persistence

    async def run(
        self,
        step_type: str,
        step_input: object = None,
        *,
        attributes: Mapping[Attribute[Any], Any],
        entries: Sequence[tuple[AttributeMap[Any], str, Any]] = (),
        attempt: int = 1,
        first_attempt_ago: int = 0,
        on_output: Any = lambda name: None,
        results: Mapping[str, Sequence[Any]] | None = None,
        recovery: str | None = None,
    ) -> StepRun:
        """Run one attempt of `execute`.

        Args:
            step_type: The Step.
            step_input: Its input.
            attributes: Stored singleton attributes.
            entries: Stored map entries that are loaded; an absent one has the value `None`.
            attempt: Attempt of the Step.
            first_attempt_ago: Seconds since its first attempt began.
            on_output: Called with the name of every output as it is sent.
            results: Values that the ended wait brings, by channel.
            recovery: Error of the Step whose failure route this is.
        """
        step = self._registry._registered_flows[self._flow_type].step(step_type)
        request = pb.InvokeExecuteMethodRequest(
            context=pb.Context(
                flow_id="session-1",
                run_id="run-1",
                step_execution_id=f"{step_type}-1",
                attempt=attempt,
                first_attempt_timestamp=int(time.time()) - first_attempt_ago,
                recovery_error=None if recovery is None else pb.RecoveryErrorInfo(detail=recovery),
            ),
            flow_type=self._flow_type,
            step_type=step_type,
            step_input=self._values.encode(step_input, step.input_codec),
            attributes=self._stored(attributes, entries),
            loaded_attribute_map_instances=[m.load(key).physical_name for m, key, _ in entries],
            condition_results=self._results(results or {}),
        )
        run = StepRun()
        async for output in self._dispatcher.invoke_execute(request):
            name = output.WhichOneof("output") or ""
            run.outputs.append(name)
            on_output(name)
            if name == "stream_write":
                run.events.append(self._event(output.stream_write.value))
            if name == "result":
                result = output.result
                run.next_steps = list(result.step_decision.next_steps)
                run.published = [message.channel_name for message in result.publish_to_channel]
                run.writes = {w.key: self._decoded(w) for w in result.upsert_attributes}
        return run

    async def wait_for(
        self,
        step_type: str,
        step_input: object = None,
        *,
        attributes: Mapping[Attribute[Any], Any],
        came_from: str = "",
    ) -> StepRun:
        """Run `wait_for` once.

        Args:
            step_type: The Step.
            step_input: Its input.
            attributes: Stored singleton attributes.
            came_from: Id of the Step execution that moved to it.
        """
        step = self._registry._registered_flows[self._flow_type].step(step_type)
        request = pb.InvokeWaitForMethodRequest(
            context=pb.Context(
                flow_id="session-1",
                run_id="run-1",
                step_execution_id=f"{step_type}-1",
                attempt=1,
                from_step_execution_id=came_from,
            ),
            flow_type=self._flow_type,
            step_type=step_type,
            step_input=self._values.encode(step_input, step.input_codec),
            attributes=self._stored(attributes, ()),
        )
        run = StepRun()
        async for output in self._dispatcher.invoke_wait_for(request):
            name = output.WhichOneof("output") or ""
            run.outputs.append(name)
            if name == "stream_write":
                run.events.append(self._event(output.stream_write.value))
            if name == "result":
                run.waits = output.result.waiting_condition
        return run

    async def rpc(
        self,
        name: str,
        argument: object = None,
        *,
        attributes: Mapping[Attribute[Any], Any],
        entries: Sequence[tuple[AttributeMap[Any], str, Any]] = (),
    ) -> StepRun:
        """Call an RPC of the Flow.

        Args:
            name: The RPC.
            argument: Its input, if it has one.
            attributes: Stored singleton attributes.
            entries: Stored map entries that are loaded; an absent one has the value `None`.
        """
        rpc = self._registry._registered_flows[self._flow_type].rpc(name)
        request = pb.InvokeWorkerRPCRequest(
            context=pb.Context(flow_id="session-1", run_id="run-1"),
            flow_type=self._flow_type,
            rpc_name=name,
            attributes=self._stored(attributes, entries),
            loaded_attribute_map_instances=[m.load(key).physical_name for m, key, _ in entries],
        )
        if rpc.input_codec is not None:
            request.input.CopyFrom(self._values.encode(argument, rpc.input_codec))
        response = await self._dispatcher.invoke_rpc(request)
        return StepRun(
            writes={w.key: self._decoded(w) for w in response.upsert_attributes},
            published=[message.channel_name for message in response.publish_to_channel],
            reply=self._values.decode(response.output, cast(Any, rpc.output_codec)),
        )

    def _stored(
        self,
        attributes: Mapping[Attribute[Any], Any],
        entries: Sequence[tuple[AttributeMap[Any], str, Any]],
    ) -> list[pb.KV]:
        return [
            *(self._kv(a.name, a, value) for a, value in attributes.items()),
            *(
                self._kv(m.load(key).physical_name, m, value)
                for m, key, value in entries
                if value is not None
            ),
        ]

    def _results(self, results: Mapping[str, Sequence[Any]]) -> pb.ConditionResults:
        return pb.ConditionResults(
            channel_results=[
                pb.ChannelResult(
                    channel_name=name,
                    condition_status=pb.CONDITION_STATUS_COMPLETED,
                    values=[self._values.encode(v, self._values.codec(type(v))) for v in values],
                )
                for name, values in results.items()
            ]
        )

    def _event(self, value: pb.Value) -> AgentEvent:
        return cast(AgentEvent, self._values.decode(value, self._values.codec(AgentEvent)))

    def _kv(self, key: str, definition: Attribute[Any] | AttributeMap[Any], value: Any) -> pb.KV:
        return pb.KV(
            key=key, value=self._values.encode(value, self._values.codec(definition.value_type))
        )

    def _decoded(self, write: pb.AttributeWrite) -> Any:
        if write.value.WhichOneof("kind") == "null_value":
            return None
        definition = cast(Any, self._definitions[write.key.split("/")[0]])
        return self._values.decode(write.value, self._values.codec(definition.value_type))
