"""What clients ask about flows, apart from RPCs and streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dex_embedded._kernel.decide import decide
from dex_embedded._kernel.errors import KernelError
from dex_embedded._kernel.inputs import (
    DeleteChannelMessage,
    Input,
    PublishToChannel,
    SetAttributes,
    SkipTimer,
    StartFlow,
    StopFlow,
    UpdateConfig,
)
from dex_embedded._kernel.start import PreviousRun, plan_start, start_run
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.transition import Moment, Transition
from dex_embedded._kernel.values import (
    AttributeWrite,
    FlowResult,
    FlowStatus,
    IndexType,
    MessageDeletion,
    Publication,
    StopType,
)
from dex_embedded._runtime.bounds import TaskRoom
from dex_embedded._runtime.call_errors import (
    CallError,
    CallErrorKind,
    flow_not_exists,
    from_kernel,
)
from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.resident_runs import ResidentRun, RunTable
from dex_embedded._runtime.stream_log import wait_seconds
from dex_embedded._runtime.waiters import Waiters
from dex_embedded._store.errors import IndexTypeConflictError
from dex_embedded._store.protocol import RunSummary, SearchPage, Store, StoredEvent

_T = TypeVar("_T")

SEARCH_PAGE: Final = 1_000
HISTORY_PAGE: Final = 100
MAXIMUM_HISTORY_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some events of a run, as they are stored."""

    run: RunSummary
    events: Sequence[StoredEvent]
    next_event_id: int
    at_end: bool


@dataclass(frozen=True, slots=True)
class HistoryNews:
    available: bool
    event_id: int
    status: FlowStatus


class FlowCalls:
    """Serves the unary calls that concern one flow, or all of them."""

    def __init__(
        self,
        runs: RunTable,
        store: Store,
        waiters: Waiters,
        moment: Callable[[], Moment],
        clock: Clock,
        room: TaskRoom,
    ) -> None:
        self._runs = runs
        self._store = store
        self._waiters = waiters
        self._moment = moment
        self._clock = clock
        self._room = room

    # --- start and stop --------------------------------------------------------------------------

    async def start(self, request: StartFlow) -> str:
        """Starts a flow and returns its run id once that is durable.

        Raises:
            CallError: The request is invalid, or the id is taken.
        """
        previous = self._previous(request.flow_id)
        moment = self._moment()
        try:
            plan = plan_start(previous, request, moment.limits)
            if plan.existing_run_id:
                await self._settled(self._runs.find(request.flow_id))
                return plan.existing_run_id
            if request.start_step_type:
                self._room.check(request.flow_type)
            decisions: list[tuple[ResidentRun, Transition]] = []
            if plan.terminate_first:
                active = self._existing(request.flow_id, "")
                stop = decide(active.run, StopFlow(type=StopType.TERMINATE), moment)
                decisions.append((active, stop))
            transition = start_run(request, moment)
        except KernelError as error:
            raise from_kernel(error) from None
        resident = self._runs.add(transition.run, is_latest=True)
        decisions.append((resident, transition))
        self._runs.stage(decisions, subject=request.start_step_type)
        run_id = transition.run.run_id
        await self._settled(resident)
        return run_id

    def _previous(self, flow_id: str) -> PreviousRun | None:
        resident = self._runs.resident_latest(flow_id)
        if resident is not None:
            run = resident.run
            return PreviousRun(run_id=run.run_id, request_id=run.request_id, status=run.status)
        summary = self._store.summary(flow_id)
        if summary is None:
            return None
        return PreviousRun(
            run_id=summary.run_id, request_id=summary.request_id, status=summary.status
        )

    async def stop(self, flow_id: str, run_id: str, stop: StopFlow) -> None:
        """Closes an active flow.

        Raises:
            CallError: There is no such active flow.
        """
        await self._update(flow_id, run_id, stop)

    async def publish(self, flow_id: str, run_id: str, messages: tuple[Publication, ...]) -> None:
        self._room.check(self._existing(flow_id, run_id).run.flow_type)
        await self._update(flow_id, run_id, PublishToChannel(messages=messages))

    async def delete_message(
        self, flow_id: str, run_id: str, deletion: MessageDeletion, request_id: str
    ) -> None:
        resident = self._existing(flow_id, run_id)
        message = DeleteChannelMessage(
            deletion=deletion,
            request_id=request_id,
            recorded=self._store.request(resident.run.key, request_id),
        )
        await self._update(flow_id, run_id, message)

    async def set_attributes(
        self, flow_id: str, run_id: str, writes: tuple[AttributeWrite, ...], request_id: str
    ) -> None:
        resident = self._existing(flow_id, run_id)
        message = SetAttributes(
            writes=writes,
            request_id=request_id,
            recorded=self._store.request(resident.run.key, request_id),
        )
        await self._update(flow_id, run_id, message)

    async def skip_timer(self, flow_id: str, run_id: str, skip: SkipTimer) -> None:
        self._room.check(self._existing(flow_id, run_id).run.flow_type)
        await self._update(flow_id, run_id, skip)

    async def update_config(
        self, flow_id: str, run_id: str, merge: Callable[[FlowRun], UpdateConfig]
    ) -> None:
        """Changes settings of an active flow; `merge` makes the new ones from the run's."""
        await self._update(flow_id, run_id, merge(self._existing(flow_id, run_id).run))

    async def check_active(self, flow_id: str, run_id: str) -> None:
        """Raises `CallError` unless the flow is active."""
        if not self._existing(flow_id, run_id).run.is_active:
            raise flow_not_exists(flow_id, run_id)

    async def _update(self, flow_id: str, run_id: str, message: Input) -> None:
        resident = self._existing(flow_id, run_id)
        try:
            self._runs.apply(resident, message)
        except KernelError as error:
            raise from_kernel(error) from None
        await self._settled(resident)

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, flow_id: str, run_id: str, look: Callable[[FlowRun], _T]) -> _T:
        """What `look` makes of a run, once that is durable.

        Raises:
            CallError: There is no such run.
        """
        resident = self._existing(flow_id, run_id)
        seen = look(resident.run)
        await self._settled(resident)
        return seen

    async def wait_for_close(self, flow_id: str, run_id: str, wait: int) -> FlowResult:
        """The result of a flow, once it is closed.

        Raises:
            CallError: There is no such flow, or it is still running after `wait` seconds.
        """

        def look(run: FlowRun) -> FlowResult | None:
            return None if run.is_active else run.result

        return await self._wait_for(flow_id, run_id, look, wait, "the flow is still running")

    async def wait_for_step(self, flow_id: str, step_type: str, number: int, wait: int) -> None:
        """Returns once that execution is over.

        Raises:
            CallError: The flow closed first, or time is up.
        """

        def look(run: FlowRun) -> bool | None:
            if run.step_completed(step_type, number):
                return True
            return None if run.is_active else False

        problem = f"{step_type}-{number} is not over yet"
        if not await self._wait_for(flow_id, "", look, wait, problem):
            raise flow_not_exists(flow_id)

    async def wait_for_attribute(
        self, flow_id: str, key: str, matches: Callable[[bytes], bool], wait: int
    ) -> bytes:
        """The value of an attribute, once it matches.

        Raises:
            CallError: The flow closed first, or time is up.
        """

        def look(run: FlowRun) -> bytes | None:
            if not run.is_active:
                raise flow_not_exists(flow_id)
            version = run.attributes.get(key)
            return version.value if version is not None and matches(version.value) else None

        return await self._wait_for(
            flow_id, "", look, wait, f"attribute {key!r} does not match yet"
        )

    async def _wait_for(
        self,
        flow_id: str,
        run_id: str,
        look: Callable[[FlowRun], _T | None],
        wait: int,
        problem: str,
    ) -> _T:
        ends_at = self._clock.monotonic() + wait_seconds(wait)
        while True:
            resident = self._existing(flow_id, run_id)
            seen = look(resident.run)
            if seen is not None:
                await self._settled(resident)
                return seen
            await self._changed(resident.run.key, ends_at, problem)

    async def _changed(self, run_key: int, ends_at: float, problem: str) -> None:
        left = ends_at - self._clock.monotonic()
        if left <= 0 or not await self._waiters.changed(run_key, left):
            raise CallError(CallErrorKind.LONG_POLL_TIMEOUT, problem)

    async def summary(self, flow_id: str, run_id: str) -> RunSummary:
        """The facts of a run that need no state.

        Raises:
            CallError: There is no such run.
        """
        resident = self._runs.resident_latest(flow_id)
        if resident is not None:
            await self._settled(resident)
        summary = self._store.summary(flow_id, run_id)
        if summary is None:
            raise flow_not_exists(flow_id, run_id)
        return summary

    # --- history ---------------------------------------------------------------------------------

    async def history(
        self, flow_id: str, run_id: str, first_event_id: int, page_size: int
    ) -> HistoryPage:
        """Events from `first_event_id` on.

        Raises:
            CallError: There is no such run.
        """
        run = await self.summary(flow_id, run_id)
        limit = min(page_size or HISTORY_PAGE, MAXIMUM_HISTORY_PAGE)
        start = max(first_event_id, 1)
        events = self._store.history(run.key, start, limit)
        next_id = events[-1].event_id + 1 if events else start
        return HistoryPage(run, events, next_id, at_end=len(events) < limit)

    def attribute_values(self, run_key: int, versions: Sequence[int]) -> Mapping[int, bytes]:
        """Values that history refers to by version."""
        return self._store.attribute_values(run_key, versions)

    async def wait_for_event(self, flow_id: str, run_id: str, event_id: int) -> HistoryNews:
        """Returns once the run has an event with this id or a later one, or is closed.

        Raises:
            CallError: There is no such run, or a minute passed.
        """
        ends_at = self._clock.monotonic() + wait_seconds(0)
        while True:
            run = await self.summary(flow_id, run_id)
            newest = self._store.last_event_id(run.key)
            if newest >= event_id or run.status is not FlowStatus.RUNNING:
                return HistoryNews(newest >= event_id, newest, run.status)
            await self._changed(run.key, ends_at, f"event {event_id} does not exist yet")

    # --- search ----------------------------------------------------------------------------------

    def search(
        self, query: str, page_size: int, page_token: str, include_continued: bool
    ) -> SearchPage:
        """Runs that match a query, newest first.

        Raises:
            CallError: The query, the page size or the token is bad.
        """
        if page_size < 0:
            raise CallError(CallErrorKind.INVALID_ARGUMENT, "page_size is negative")
        try:
            return self._store.search(
                query,
                limit=min(page_size or SEARCH_PAGE, SEARCH_PAGE),
                after=page_token,
                include_continued=include_continued,
            )
        except KernelError as error:
            raise from_kernel(error) from None

    async def declare_indexes(self, types: Mapping[str, IndexType]) -> None:
        """Makes index keys known to search.

        Raises:
            CallError: A key is known with another type.
        """
        try:
            ticket = self._store.declare_indexes(types)
        except IndexTypeConflictError as error:
            raise CallError(CallErrorKind.INVALID_ARGUMENT, str(error)) from None
        await ticket.wait()

    # --- common ----------------------------------------------------------------------------------

    def _existing(self, flow_id: str, run_id: str) -> ResidentRun:
        resident = self._runs.find(flow_id, run_id)
        if resident is None:
            raise flow_not_exists(flow_id, run_id)
        return resident

    async def _settled(self, resident: ResidentRun | None) -> None:
        """Waits until everything decided so far on the run is durable."""
        if resident is not None and resident.ticket is not None:
            await resident.ticket.wait()
