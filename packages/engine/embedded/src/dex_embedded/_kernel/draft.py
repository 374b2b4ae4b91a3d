"""A transition in the making: the only code that changes a `FlowRun`.

Everything here assumes the input has been checked; nothing raises. Each primitive changes the run
and notes the row it costs, so that state and rows cannot drift apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dex_embedded._kernel.events import EventPayload, HistoryEvent
from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.state import FlowRun, InvocationRef, Phase, StepExecution
from dex_embedded._kernel.transition import (
    AddMessage,
    AppendEvent,
    Change,
    Command,
    DeleteAttribute,
    DeleteStep,
    DispatchStep,
    ForgetOldVersions,
    InsertRun,
    Moment,
    Outcome,
    PutAttribute,
    PutIndexEntry,
    PutStep,
    RecordRequest,
    RemoveMessage,
    Transition,
    UpdateRun,
    WithdrawRpc,
    WithdrawStep,
)
from dex_embedded._kernel.values import (
    AppliedWrite,
    AttributeVersion,
    AttributeWrite,
    ChannelMessage,
    Effects,
    MessageDeletion,
    Publication,
)


class Draft:
    """Collects what one input does to one run."""

    def __init__(self, run: FlowRun, moment: Moment, *, is_new_run: bool = False) -> None:
        self.run = run
        self.moment = moment
        self.now = moment.now
        self.closed = False
        self._is_new_run = is_new_run
        self._header_changed = is_new_run
        self._bulk_changed = False
        self._rows: list[Change] = []
        self._added: dict[int, ChannelMessage] = {}
        self._new_steps: dict[str, StepExecution] = {}
        self._changed_steps: dict[str, StepExecution] = {}
        self._given_changed: set[str] = set()
        self._deleted_steps: list[int] = []
        self._became_ready: dict[str, StepExecution] = {}
        self._withdrawals: list[Command] = []
        self._events: list[Change] = []
        self._written_keys: list[str] = []
        self._ended_steps: list[str] = []

    # --- attributes ---

    def write_attributes(self, writes: Iterable[AttributeWrite]) -> tuple[AppliedWrite, ...]:
        return tuple(self._write_attribute(write) for write in writes)

    def _write_attribute(self, write: AttributeWrite) -> AppliedWrite:
        run = self.run
        table = run.attributes
        version: AttributeVersion | None = None
        if write.value is None:
            replaced = table.remove(write.key)
            if replaced is not None:
                run.attribute_clock += 1
                retain = self._retains_old_versions()
                self._rows.append(DeleteAttribute(replaced, run.attribute_clock, retain))
        else:
            run.attribute_clock += 1
            version = AttributeVersion(
                key=write.key,
                version=run.attribute_clock,
                value=write.value,
                hard_delete=write.hard_delete,
            )
            replaced = table.get(write.key)
            table.put(version)
            retain = replaced is not None and self._retains_old_versions()
            self._rows.append(PutAttribute(version, replaced, retain))
        if write.index is not None:
            self._rows.append(PutIndexEntry(write.index))
        self._header_changed = True
        self._written_keys.append(write.key)
        return AppliedWrite(write=write, version=version)

    def _retains_old_versions(self) -> bool:
        if any(_has_snapshot(step) for step in self.run.steps.values()):
            self.run.has_old_versions = True
            return True
        return False

    # --- channels ---

    def publish(self, publications: Iterable[Publication]) -> tuple[ChannelMessage, ...]:
        return tuple(self._append(publication) for publication in publications)

    def _append(self, publication: Publication) -> ChannelMessage:
        run = self.run
        run.message_clock += 1
        message = ChannelMessage(
            channel=publication.channel,
            message_id=self.moment.new_id(),
            sequence=run.message_clock,
            value=publication.value,
        )
        run.channels.setdefault(publication.channel, deque()).append(message)
        self._added[message.sequence] = message
        self._header_changed = True
        return message

    def take(self, channel: str, count: int) -> list[ChannelMessage]:
        """Consume from the head of a channel; the caller knows that so many are there."""
        queue = self.run.channels[channel]
        taken = [queue.popleft() for _ in range(count)]
        if not queue:
            del self.run.channels[channel]
        for message in taken:
            self._note_removal(message)
        return taken

    def delete_messages(self, deletions: Iterable[MessageDeletion]) -> None:
        """Remove pending messages; those that are not pending are passed over."""
        for deletion in deletions:
            queue = self.run.channels.get(deletion.channel)
            for message in queue or ():
                if message.message_id == deletion.message_id:
                    self._remove(message)
                    break

    def _remove(self, message: ChannelMessage) -> None:
        queue = self.run.channels[message.channel]
        queue.remove(message)
        if not queue:
            del self.run.channels[message.channel]
        self._note_removal(message)

    def _note_removal(self, message: ChannelMessage) -> None:
        if self._added.pop(message.sequence, None) is not None:
            return  # came and went in one transition: no row ever exists
        retain = message.sequence in _shown_messages(self.run)
        if retain:
            self.run.retained[message.sequence] = message
        self._rows.append(RemoveMessage(message.sequence, retain))

    def apply(
        self, effects: Effects
    ) -> tuple[tuple[AppliedWrite, ...], tuple[ChannelMessage, ...]]:
        """Writes, then deletions, then publications; returns writes and messages as stored."""
        writes = self.write_attributes(effects.attribute_writes)
        self.delete_messages(effects.deletions)
        return writes, self.publish(effects.publications)

    # --- steps ---

    def count_step(self, step_type: str) -> int:
        """Use up the next number of a step type."""
        number = self.run.step_counts.get(step_type, 0) + 1
        self.run.step_counts[step_type] = number
        self._header_changed = True
        return number

    def next_ordinal(self) -> int:
        self.run.step_clock += 1
        return self.run.step_clock

    def next_lock_order(self) -> int:
        self.run.lock_clock += 1
        self._header_changed = True
        return self.run.lock_clock

    def add_step(self, step: StepExecution) -> None:
        self.run.steps[step.id] = step
        self._new_steps[step.id] = step

    def touch(self, step: StepExecution, *, given: bool = False) -> None:
        """Note that the row of the step has to be written again; `given`: results or locals too."""
        if step.id not in self._new_steps:
            self._changed_steps[step.id] = step
            if given:
                self._given_changed.add(step.id)

    def make_ready(self, step: StepExecution, since: float | None = None) -> None:
        """The current attempt can be offered; `since` when, if it could have been earlier."""
        assert step.invocation is not None
        step.phase = Phase.READY
        step.invocation.ready_since = self.now if since is None else since
        self._became_ready[step.id] = step
        self.touch(step)

    def remove_step(self, step: StepExecution) -> None:
        """The execution is over: it leaves the run and lets go of its locks and its snapshot."""
        self.unlock(step)
        del self.run.steps[step.id]
        self._changed_steps.pop(step.id, None)
        if self._new_steps.pop(step.id, None) is None:
            self._deleted_steps.append(step.ordinal)
        self._became_ready.pop(step.id, None)
        self._ended_steps.append(step.id)

    def note_ended(self, step_execution_id: str) -> None:
        """A movement that ends without ever having been an active execution."""
        self._ended_steps.append(step_execution_id)

    def withdraw(self, step: StepExecution, ref: InvocationRef) -> None:
        """The attempt is of no use any more; tell whoever holds it."""
        if step.id in self._became_ready:
            return  # never announced
        if step.phase in (Phase.READY, Phase.HANDED_OUT):
            handed_out = step.phase is Phase.HANDED_OUT
            self._withdrawals.append(WithdrawStep(ref=ref, handed_out=handed_out))

    def withdraw_rpc(self, call_id: str) -> None:
        self._withdrawals.append(WithdrawRpc(call_id=call_id))

    # --- locks ---

    def lock(self, step: StepExecution, keys: Iterable[str]) -> None:
        step.held_locks = tuple(keys)
        for key in step.held_locks:
            self.run.locks[key] = step.id

    def unlock(self, step: StepExecution) -> None:
        for key in step.held_locks:
            del self.run.locks[key]
        step.held_locks = ()

    # --- the run ---

    def change_header(self, *, bulk: bool = False) -> None:
        """Note that the row of the run changed; `bulk`: its config, outputs or delayed queue."""
        self._header_changed = True
        self._bulk_changed |= bulk

    def add_event(self, payload: EventPayload) -> None:
        run = self.run
        run.event_clock += 1
        self._header_changed = True
        self._events.append(
            AppendEvent(
                HistoryEvent(
                    event_id=run.event_clock,
                    event_time=self.now,
                    run_attempt=run.run_attempt,
                    payload=payload,
                )
            )
        )

    def record_request(self, request: RecordedRequest) -> None:
        self._rows.append(RecordRequest(request))

    # --- the end ---

    def finish(self, outcome: Outcome = None) -> Transition:
        """The finished transition. The draft is of no use afterwards."""
        run = self.run
        self._release_retained()
        changes: list[Change] = []
        wake_at = run.wake_at if run.is_active else None
        marks = (run.is_busy, wake_at)
        if self._is_new_run:
            changes.append(InsertRun(run))
        elif self._header_changed or (self._steps_changed() and marks != run.stored_marks):
            changes.append(UpdateRun(run, self._bulk_changed))
        if changes:
            run.stored_marks = marks
        changes.extend(self._rows)
        changes.extend(AddMessage(message) for message in self._added.values())
        changes.extend(DeleteStep(ordinal) for ordinal in self._deleted_steps)
        changes.extend(PutStep(step, True, True) for step in self._new_steps.values())
        changes.extend(
            PutStep(step, False, step.id in self._given_changed)
            for step in self._changed_steps.values()
        )
        changes.extend(self._events)
        commands = [*self._withdrawals, *(_dispatch(s) for s in self._became_ready.values())]
        return Transition(
            run=run,
            changes=changes,
            commands=commands,
            outcome=outcome,
            wake_at=wake_at,
            closed=self.closed,
            written_keys=self._written_keys,
            ended_steps=self._ended_steps,
        )

    def _steps_changed(self) -> bool:
        return bool(self._new_steps or self._changed_steps or self._deleted_steps)

    def _release_retained(self) -> None:
        run = self.run
        if run.retained:
            shown = _shown_messages(run)
            for sequence in [s for s in run.retained if s not in shown]:
                del run.retained[sequence]
                self._rows.append(RemoveMessage(sequence, False))
        if run.has_old_versions and not any(_has_snapshot(step) for step in run.steps.values()):
            run.has_old_versions = False
            self.change_header()
            self._rows.append(ForgetOldVersions())


def _has_snapshot(step: StepExecution) -> bool:
    return step.invocation is not None and step.invocation.snapshot is not None


def _shown_messages(run: FlowRun) -> set[int]:
    """Sequences of the messages that snapshots in use show."""
    return {
        message.sequence
        for step in run.steps.values()
        if step.invocation is not None and step.invocation.snapshot is not None
        for _, messages in step.invocation.snapshot.messages
        for message in messages
    }


def _dispatch(step: StepExecution) -> DispatchStep:
    options = step.options.of(step.method)
    return DispatchStep(
        ref=step.ref,
        step_type=step.step_type,
        single_attempt=options.retry.maximum_attempts == 1,
    )
