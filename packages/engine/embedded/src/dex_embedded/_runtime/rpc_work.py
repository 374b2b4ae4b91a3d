"""RPC calls on their way to workers and back to their callers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import Final

from dex_embedded._kernel.errors import KernelError
from dex_embedded._kernel.inputs import RpcFailed, RpcStarted, RpcSucceeded
from dex_embedded._kernel.state import Snapshot
from dex_embedded._kernel.transition import (
    RpcCommitted,
    RpcDispatch,
    RpcJoined,
    RpcRefused,
    RpcRepeated,
)
from dex_embedded._kernel.values import Failure, FailureKind, RpcResult, Selection
from dex_embedded._runtime.bounds import TaskRoom, overloaded
from dex_embedded._runtime.call_errors import (
    CallError,
    CallErrorKind,
    DispatchFailure,
    WorkerFailure,
    flow_not_exists,
    from_kernel,
)
from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.codec import Codec
from dex_embedded._runtime.dispatcher import Dispatcher
from dex_embedded._runtime.frame_size import FrameTooLargeError
from dex_embedded._runtime.resident_runs import ResidentRun, RunTable
from dex_embedded._runtime.timer import CallLater, Timer
from dex_embedded._runtime.worker_streams import Offer, TaskClass, TaskFrame, WorkerTask
from dex_embedded._store.protocol import Store

_LOGGER = logging.getLogger(__name__)

DISPATCH_WAIT: Final = 10.0
"""How long an RPC waits for a worker that takes it."""
MAXIMUM_BUDGET: Final = 60.0
"""The longest a handler may run, and the default."""
MAXIMUM_REOFFERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest:
    """One InvokeRPC call, as the wire has checked it."""

    flow_id: str
    run_id: str
    rpc_name: str
    request_id: str
    input: bytes
    timeout: int
    lock_keys: tuple[str, ...]
    transactional: bool
    selection: Selection


@dataclass(eq=False, slots=True)
class RpcCall:
    """A call in progress; what a worker task for an RPC refers to."""

    resident: ResidentRun
    started: RpcStarted
    snapshot: Snapshot
    budget: float
    answer: asyncio.Future[bytes | None]
    task: WorkerTask = field(init=False)
    limit: Timer | None = None
    waited_out: bool = False
    reoffers: int = 0

    def stop_timer(self) -> None:
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None


class RpcWork:
    """Serves InvokeRPC."""

    def __init__(
        self,
        runs: RunTable,
        store: Store,
        dispatcher: Dispatcher,
        codec: Codec,
        clock: Clock,
        call_later: CallLater,
        room: TaskRoom,
    ) -> None:
        self._runs = runs
        self._store = store
        self._dispatcher = dispatcher
        self._codec = codec
        self._clock = clock
        self._call_later = call_later
        self._room = room
        self._calls: dict[str, RpcCall] = {}

    # --- from the caller -------------------------------------------------------------------------

    async def invoke(self, request: RpcRequest) -> bytes | None:
        """Runs the RPC and returns its output once everything it did is durable.

        The caller going away does not undo a call that was accepted.

        Raises:
            CallError: It was refused, failed, or was not answered in time.
        """
        resident = self._runs.find(request.flow_id, request.run_id)
        if resident is None:
            raise flow_not_exists(request.flow_id, request.run_id)
        if resident.pins >= self._room.bounds.calls_per_flow:
            raise overloaded(f"{resident.pins:,} RPCs of this flow are in progress already")
        started = RpcStarted(
            call_id=uuid.uuid4().hex,
            rpc_name=request.rpc_name,
            request_id=request.request_id,
            input=request.input,
            lock_keys=request.lock_keys,
            transactional=request.transactional,
            selection=request.selection,
            recorded=self._store.request(resident.run.key, request.request_id)
            if request.transactional or request.lock_keys
            else None,
        )
        try:
            outcome = self._runs.apply(resident, started, subject=request.rpc_name).outcome
        except KernelError as error:
            raise from_kernel(error) from None
        match outcome:
            case RpcRepeated(output=output):
                await self._settled(resident)
                return output
            case RpcJoined(call_id=call_id):
                call = self._calls[call_id]
            case RpcDispatch(snapshot=snapshot):
                call = self._send(resident, started, snapshot, request)
            case _:
                raise CallError(CallErrorKind.INTERNAL, f"unexpected outcome {outcome!r}")
        return await asyncio.shield(call.answer)

    def _send(
        self,
        resident: ResidentRun,
        started: RpcStarted,
        snapshot: Snapshot,
        request: RpcRequest,
    ) -> RpcCall:
        budget = min(float(request.timeout) or MAXIMUM_BUDGET, MAXIMUM_BUDGET)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        # A caller that went away leaves nobody to look at the answer.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        call = RpcCall(resident, started, snapshot, budget, answer)
        call.task = WorkerTask(
            flow_type=resident.run.flow_type,
            name=started.rpc_name,
            profile=f"rpc {started.rpc_name}",
            task_class=TaskClass.RPC,
            reference=call,
            sticky_worker=resident.run.sticky_worker,
        )
        resident.pins += 1
        self._calls[started.call_id] = call
        call.limit = self._call_later(DISPATCH_WAIT, lambda: self._waited_out(call))
        self._dispatcher.submit(call.task)
        return call

    # --- to the worker ---------------------------------------------------------------------------

    def hand_out(self, offer: Offer) -> None:
        """Sends an offered call to its worker."""
        call = _call_of(offer.task)
        run = call.resident.run
        now = self._clock.wall()
        try:
            payload = self._codec.encode_rpc_task(
                offer.task_id,
                flow_id=run.flow_id,
                run_id=run.run_id,
                run_attempt=run.run_attempt,
                flow_type=run.flow_type,
                flow_started_at=run.started_at,
                rpc_name=call.started.rpc_name,
                rpc_input=call.started.input,
                snapshot=call.snapshot,
                now=now,
                deadline=now + call.budget,
            )
        except FrameTooLargeError as error:
            self._dispatcher.withdraw(offer.task)
            self._fail(call, CallError(CallErrorKind.WORKER_FAILED, str(error)))
            return
        offer.stream.send(TaskFrame(payload, call.started.rpc_name))
        self._dispatcher.frame_sent(offer)
        call.stop_timer()
        call.limit = self._call_later(call.budget, lambda: self._overran(call))

    def _waited_out(self, call: RpcCall) -> None:
        call.limit = None
        call.waited_out = True
        if call.task.offer is None:
            self._no_worker(call)

    def _no_worker(self, call: RpcCall) -> None:
        self._dispatcher.withdraw(call.task)
        run, name = call.resident.run, call.started.rpc_name
        if call.task.unknown_to:
            reason = DispatchFailure.UNKNOWN_NAME
            text = f"no worker of flow type {run.flow_type!r} has an RPC named {name!r}"
        else:
            reason = DispatchFailure.NO_WORKER_AVAILABLE
            text = f"no worker took RPC {name!r} of flow type {run.flow_type!r} in time"
        self._fail(call, CallError(CallErrorKind.WORKER_FAILED, text, dispatch=reason))

    def _overran(self, call: RpcCall) -> None:
        call.limit = None
        self._dispatcher.withdraw(call.task)
        text = f"RPC {call.started.rpc_name!r} did not finish within {call.budget:g} seconds"
        self._fail(call, CallError(CallErrorKind.LONG_POLL_TIMEOUT, text))

    # --- from the worker -------------------------------------------------------------------------

    def finished(self, offer: Offer, result: RpcResult) -> None:
        """The handler answered: commit what it did, then answer the caller."""
        if self._dispatcher.finished(offer.stream) is None:
            return
        call = _call_of(offer.task)
        resident = call.resident
        if not call.started.is_update and not result.has_effects:
            # The answer may rest on changes that are not durable yet.
            self._answer_when_durable(call, resident, result.output)
            return
        try:
            if _may_lead_to_tasks(result):
                self._room.check(resident.run.flow_type)
        except CallError as error:
            self._fail(call, error)
            return
        message = RpcSucceeded(
            call=call.started, result=result, served_by=offer.stream.worker.worker_id
        )
        try:
            outcome = self._runs.apply(resident, message, subject=call.started.rpc_name).outcome
        except KernelError as error:
            self._settle(call, from_kernel(error))
            return
        match outcome:
            case RpcCommitted(output=output):
                self._answer_when_durable(call, resident, output)
            case RpcRefused(error=error):
                self._settle(call, from_kernel(error))
            case _:
                text = f"unexpected outcome {outcome!r}"
                self._settle(call, CallError(CallErrorKind.INTERNAL, text))

    def failed(self, offer: Offer, failure: Failure) -> None:
        if self._dispatcher.finished(offer.stream) is None:
            return
        call = _call_of(offer.task)
        name = call.started.rpc_name
        if failure.kind is FailureKind.WORKER_ERROR:
            worker = WorkerFailure(
                failure.detail, failure.error_type, failure.stack_trace, failure.grpc_status
            )
            text = f"RPC {name!r} failed: {failure.detail}"
            error = CallError(CallErrorKind.WORKER_FAILED, text, worker=worker)
        else:
            text = f"RPC {name!r}: {failure.detail}"
            error = CallError(CallErrorKind.WORKER_FAILED, text)
        self._fail(call, error)

    def returned(self, offer: Offer) -> None:
        """The call was declined: it goes to another worker, or to this one later."""
        call = _call_of(offer.task)
        call.stop_timer()
        waited = self._clock.monotonic() - call.task.queued_at
        if call.waited_out or waited >= DISPATCH_WAIT:
            self._no_worker(call)
            return
        call.limit = self._call_later(DISPATCH_WAIT - waited, lambda: self._waited_out(call))
        self._dispatcher.hand_back(call.task)

    def lost(self, offer: Offer, *, retired: bool) -> None:
        """The stream ended without an answer.

        A half-close hardly ever means that the handler ran. A lost worker may have run it, but has
        committed nothing, so a transactional call goes out again all the same.
        """
        call = _call_of(offer.task)
        call.reoffers += 1
        may_repeat = retired or call.started.is_update
        if may_repeat and call.reoffers <= MAXIMUM_REOFFERS:
            self.returned(offer)
            return
        text = f"the worker that ran RPC {call.started.rpc_name!r} was lost"
        reason = DispatchFailure.WORKER_DISCONNECTED
        self._fail(call, CallError(CallErrorKind.WORKER_FAILED, text, dispatch=reason))

    def withdrawn(self, call_id: str) -> None:
        """The run closed under the call."""
        call = self._calls.get(call_id)
        if call is not None:
            self._dispatcher.withdraw(call.task)
            self._settle(call, flow_not_exists(call.resident.run.flow_id))

    def stop(self, error: CallError) -> None:
        """Ends every call that is still in progress."""
        for call in list(self._calls.values()):
            self._dispatcher.withdraw(call.task)
            self._settle(call, error)

    # --- ends ------------------------------------------------------------------------------------

    async def _settled(self, resident: ResidentRun) -> None:
        if resident.ticket is not None:
            await resident.ticket.wait()

    def _answer_when_durable(
        self, call: RpcCall, resident: ResidentRun, output: bytes | None
    ) -> None:
        if resident.ticket is None or resident.ticket.is_durable:
            self._settle(call, output)
        else:
            resident.ticket.add_callback(lambda: self._settle(call, output))

    def _fail(self, call: RpcCall, error: CallError) -> None:
        """Frees what the call holds, then fails it."""
        if call.started.is_update and call.started.call_id in call.resident.run.rpcs:
            self._runs.apply(call.resident, RpcFailed(call=call.started))
        self._settle(call, error)

    def _settle(self, call: RpcCall, answer: bytes | CallError | None) -> None:
        call.stop_timer()
        if self._calls.pop(call.started.call_id, None) is not None:
            call.resident.pins -= 1
        if call.answer.done():
            return
        if isinstance(answer, CallError):
            call.answer.set_exception(answer)
        else:
            call.answer.set_result(answer)


def _may_lead_to_tasks(result: RpcResult) -> bool:
    decision = result.decision
    return bool(result.effects.publications) or (decision is not None and bool(decision.next_steps))


def _call_of(task: WorkerTask) -> RpcCall:
    call = task.reference
    assert isinstance(call, RpcCall)
    return call
