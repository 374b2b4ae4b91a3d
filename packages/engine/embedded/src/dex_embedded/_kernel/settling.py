"""What follows by itself at the end of every transition: waits end, locks pass on, a quiet flow
completes. Deciding that a wait is over and taking its messages is part of the same transition."""

from __future__ import annotations

from dex_embedded._kernel.closing import close
from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.execution import end_back_off, enter_execute, grant_locks, start_steps
from dex_embedded._kernel.state import Phase, StepExecution, Wait
from dex_embedded._kernel.values import (
    ChannelMessage,
    ChannelResult,
    ConditionResults,
    FlowStatus,
    TimerResult,
    TimerStatus,
)
from dex_embedded._kernel.waiting import Win, choose


def settle(draft: Draft) -> None:
    """Let everything happen that can happen now."""
    run = draft.run
    if not run.is_active:
        return
    _end_waits(draft)
    grant_locks(draft)
    if run.completing and not run.steps and not run.queue:
        close(draft, FlowStatus.COMPLETED)


def do_what_is_due(draft: Draft) -> None:
    """Start a delayed queue and end the back-offs whose time has come; `settle` does timers."""
    run = draft.run
    if run.start_due_at is not None and run.start_due_at <= draft.now:
        run.start_due_at = None
        queue, run.queue = run.queue, []
        for queued in queue:
            start_steps(draft, [queued.movement], queued.from_id, queued.recovery_error)
        draft.change_header(bulk=True)
    for step in run.steps.values():
        if step.phase is not Phase.BACKING_OFF or step.invocation is None:
            continue
        if step.invocation.retry_at is not None and step.invocation.retry_at <= draft.now:
            end_back_off(draft, step)


def _end_waits(draft: Draft) -> None:
    """Oldest execution first; one pass is enough, since a wait that ends only takes away."""
    for step in list(draft.run.steps.values()):
        if step.phase is not Phase.WAITING or step.wait is None:
            continue
        _fire_due_timers(draft, step, step.wait)
        fired = [timer.status is not TimerStatus.PENDING for timer in step.wait.timers]
        win = choose(step.wait.condition, fired, lambda name: _pending(draft, name))
        if win is not None:
            _end_wait(draft, step, step.wait, win)


def _fire_due_timers(draft: Draft, step: StepExecution, wait: Wait) -> None:
    now = int(draft.now)
    for timer in wait.timers:
        if timer.status is TimerStatus.PENDING and timer.firing_at <= now:
            timer.status = TimerStatus.FIRED
            draft.touch(step)


def _pending(draft: Draft, channel: str) -> int:
    queue = draft.run.channels.get(channel)
    return len(queue) if queue is not None else 0


def _end_wait(draft: Draft, step: StepExecution, wait: Wait, win: Win) -> None:
    condition = wait.condition
    taken: dict[int, list[ChannelMessage]] = {}
    winners = win.candidate.channels
    for counts in (win.minima, win.extras):
        for index, count in zip(winners, counts, strict=True):
            messages = taken.setdefault(index, [])
            if count:
                messages.extend(draft.take(condition.channels[index].channel, count))
    consumed: dict[str, int] = {}
    for index, messages in taken.items():
        if messages:
            name = condition.channels[index].channel
            consumed[name] = consumed.get(name, 0) + len(messages)
    step.consumed = tuple(sorted(consumed.items()))
    results = ConditionResults(
        timers=tuple(
            TimerResult(condition_id=timer.condition_id, completed=index in win.candidate.timers)
            for index, timer in enumerate(condition.timers)
        ),
        channels=tuple(
            ChannelResult(
                condition_id=channel.condition_id,
                channel=channel.channel,
                completed=index in taken,
                values=tuple(message.value for message in taken.get(index, ())),
            )
            for index, channel in enumerate(condition.channels)
        ),
    )
    enter_execute(draft, step, results)
