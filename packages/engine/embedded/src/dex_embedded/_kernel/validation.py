"""Rules for what clients ask and workers answer.

Every check raises `InvalidRequestError`; for a worker's result `decide` turns it into a failed
attempt. Checks never change anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dex_embedded._kernel.errors import InvalidRequestError, UnsupportedError, quoted
from dex_embedded._kernel.inputs import StartFlow
from dex_embedded._kernel.transition import Limits
from dex_embedded._kernel.values import (
    AttributeWrite,
    CloseDecision,
    CloseType,
    Effects,
    ExecuteResult,
    MethodOptions,
    RetryPolicy,
    RpcResult,
    Selection,
    StepDecision,
    StepMovement,
    StepOptions,
    WaitForResult,
    WaitingCondition,
    WaitingType,
)

RESERVED_CHARACTERS = "/$:"
"""Not allowed in flow ids and step types: the engine builds names with them."""


def check_name(what: str, name: str) -> None:
    """A flow id or step type: not empty, none of the reserved characters."""
    if not name:
        raise InvalidRequestError(f"{what} is empty")
    for character in RESERVED_CHARACTERS:
        if character in name:
            raise InvalidRequestError(f"{what} {quoted(name)} contains the reserved {character!r}")


def check_start(request: StartFlow, limits: Limits) -> None:
    """A start request as a whole.

    Raises:
        InvalidRequestError: A rule is broken.
        UnsupportedError: A feature is asked for that is not served.
    """
    check_name("flow id", request.flow_id)
    for what, text in (("flow type", request.flow_type), ("request id", request.request_id)):
        if not text:
            raise InvalidRequestError(f"{what} is empty")
    _check_not_negative("flow timeout", request.timeout)
    _check_not_negative("start delay", request.start_delay)
    if request.start_step_type:
        check_name("step type", request.start_step_type)
        check_options(request.start_step_options, limits)
    for write in request.attributes:
        _check_write(write)
    _check_unique("initial attribute", [write.key for write in request.attributes])
    if request.timeout:
        raise UnsupportedError("flow timeouts")
    if request.has_timeout_handler:
        raise UnsupportedError("flow timeout handlers")
    if request.has_retry_policy:
        raise UnsupportedError("flow retry policies")


def check_options(options: StepOptions, limits: Limits) -> None:
    """The options of a movement, with those of its failure route."""
    heartbeat = options.heartbeat_timeout
    _check_not_negative("heartbeat timeout", heartbeat)
    if 0 < heartbeat < limits.minimum_heartbeat_timeout:
        raise InvalidRequestError(
            f"heartbeat timeout of {heartbeat} s is below the minimum of"
            f" {limits.minimum_heartbeat_timeout} s"
        )
    for method in (options.wait_for, options.execute):
        _check_method_options(method)
    if options.failure_step_type:
        check_name("failure step type", options.failure_step_type)
    if options.failure_step_options is not None:
        check_options(options.failure_step_options, limits)


def check_selection(selection: Selection) -> None:
    """Names to load: not empty, no duplicates, one `/` in map selections and none elsewhere."""
    for name in (*selection.attribute_maps, *selection.channel_maps):
        if name.count("/") != 1 or name.startswith("/"):
            raise InvalidRequestError(
                f"map selection {quoted(name)} is not 'Name/' or 'Name/instance'"
            )
    for name in selection.channels:
        if not name or "/" in name:
            raise InvalidRequestError(f"channel selection {quoted(name)} is no plain channel name")
    _check_unique("selected attribute map", selection.attribute_maps)
    _check_unique("selected channel", selection.channels)
    _check_unique("selected channel map", selection.channel_maps)


def normalised(selection: Selection) -> Selection:
    """The selection sorted and without duplicates, as it is echoed."""
    return Selection(
        attribute_maps=tuple(sorted(set(selection.attribute_maps))),
        channels=tuple(sorted(set(selection.channels))),
        channel_maps=tuple(sorted(set(selection.channel_maps))),
    )


def check_wait_for_result(result: WaitForResult) -> None:
    """The result of a WaitFor.

    Raises:
        InvalidRequestError: A rule is broken.
        UnsupportedError: It waits for a SubFlow.
    """
    _check_effects(result.effects)
    _check_unique("step local", [key for key, _ in result.locals])
    if result.condition is not None:
        _check_condition(result.condition)


def check_execute_result(result: ExecuteResult, limits: Limits) -> None:
    """The result of an Execute."""
    _check_effects(result.effects)
    decision = result.decision
    if decision is None:
        raise InvalidRequestError("the result has no decision")
    if not decision.next_steps and decision.close is None:
        raise InvalidRequestError("the decision has neither next steps nor a close decision")
    _check_movements(decision.next_steps, limits)
    for step_type in (*decision.cancel_step_types, *decision.cancel_sibling_step_types):
        if not step_type:
            raise InvalidRequestError("a step type to cancel is empty")
    if decision.close is not None:
        _check_close(decision.close, decision)


def check_rpc_result(result: RpcResult, limits: Limits) -> None:
    """The result of an RPC handler."""
    _check_effects(result.effects)
    decision = result.decision
    if decision is None:
        return
    if decision.close is not None:
        raise InvalidRequestError("an RPC cannot close the flow")
    if decision.cancel_sibling_step_types:
        raise InvalidRequestError("an RPC has no sibling steps to cancel")
    if "" in decision.cancel_step_types:
        raise InvalidRequestError("a step type to cancel is empty")
    _check_movements(decision.next_steps, limits)


def check_writes(writes: Sequence[AttributeWrite]) -> None:
    for write in writes:
        _check_write(write)


def check_channel(name: str) -> None:
    if not name:
        raise InvalidRequestError("a channel name is empty")


def _check_movements(movements: Iterable[StepMovement], limits: Limits) -> None:
    for movement in movements:
        check_name("step type", movement.step_type)
        check_options(movement.options, limits)


def _check_close(close: CloseDecision, decision: StepDecision) -> None:
    if close.type is CloseType.UNSPECIFIED:
        raise InvalidRequestError("the close decision has no type")
    if close.type is CloseType.FORCE_COMPLETE_ON_CHANNELS_EMPTY:
        if not decision.next_steps:
            raise InvalidRequestError("a conditional completion needs a next step to fall back to")
        if not close.channels:
            raise InvalidRequestError("a conditional completion needs channel names")
        for channel in close.channels:
            check_channel(channel)
        _check_unique("channel of the conditional completion", close.channels)
        return
    if decision.next_steps:
        raise InvalidRequestError("a close decision cannot have next steps")
    if close.channels:
        raise InvalidRequestError("only a conditional completion names channels")
    if close.type is CloseType.DEAD_END and close.close_input is not None:
        raise InvalidRequestError("a dead end has no output")
    if (
        close.type is CloseType.FORCE_FAIL
        and close.close_input is not None
        and close.reason is None
    ):
        raise InvalidRequestError("the reason of a forced failure is not a string")


def _check_condition(condition: WaitingCondition) -> None:
    if condition.type is WaitingType.UNSPECIFIED:
        raise InvalidRequestError("the waiting condition has no type")
    if condition.sub_flow_count:
        raise UnsupportedError("SubFlow conditions")
    for timer in condition.timers:
        _check_not_negative("timer duration", timer.duration)
    for channel in condition.channels:
        check_channel(channel.channel)
        for bound in (channel.at_least, channel.at_most):
            _check_not_negative("message bound", bound or 0)
        if (
            channel.at_least is not None
            and channel.at_most is not None
            and channel.at_most < channel.at_least
        ):
            raise InvalidRequestError(
                f"channel condition on {quoted(channel.channel)} wants at least {channel.at_least}"
                f" and at most {channel.at_most} messages"
            )
    ids = [part.condition_id for part in (*condition.timers, *condition.channels)]
    _check_unique("condition id", [name for name in ids if name])
    _check_combinations(condition, ids)


def _check_combinations(condition: WaitingCondition, ids: Sequence[str]) -> None:
    if condition.type is not WaitingType.ANY_COMBINATION_COMPLETED:
        if condition.combinations:
            raise InvalidRequestError("combinations need the type ANY_COMBINATION_COMPLETED")
        return
    if "" in ids:
        raise InvalidRequestError("a condition of a combination wait has no id")
    if ids and not condition.combinations:
        raise InvalidRequestError("a combination wait has no combinations")
    for combination in condition.combinations:
        if not combination:
            raise InvalidRequestError("a combination is empty")
        _check_unique("condition id in a combination", combination)
        for name in combination:
            if name not in ids:
                raise InvalidRequestError(f"combination names undeclared condition {quoted(name)}")


def _check_effects(effects: Effects) -> None:
    check_writes(effects.attribute_writes)
    for publication in effects.publications:
        check_channel(publication.channel)
    for deletion in effects.deletions:
        check_channel(deletion.channel)


def _check_write(write: AttributeWrite) -> None:
    if not write.key:
        raise InvalidRequestError("an attribute key is empty")
    if write.value == b"":
        raise InvalidRequestError(f"attribute {quoted(write.key)} has a value without a kind")


def _check_method_options(options: MethodOptions) -> None:
    _check_not_negative("method timeout", options.timeout)
    _check_retry(options.retry)
    if "" in options.lock_keys:
        raise InvalidRequestError("a lock key is empty")
    check_selection(options.selection)


def _check_retry(policy: RetryPolicy) -> None:
    _check_not_negative("initial retry interval", policy.initial_interval)
    _check_not_negative("maximum retry interval", policy.maximum_interval)
    _check_not_negative("maximum attempts", policy.maximum_attempts)
    _check_not_negative("total retry duration", policy.total_duration)
    coefficient = policy.backoff_coefficient
    if not math.isfinite(coefficient) or (coefficient != 0 and coefficient < 1):
        raise InvalidRequestError(f"back-off coefficient {coefficient} is not 0 or at least 1")


def _check_not_negative(what: str, number: int) -> None:
    if number < 0:
        raise InvalidRequestError(f"{what} is negative: {number}")


def _check_unique(what: str, names: Sequence[str]) -> None:
    if len(set(names)) == len(names):
        return
    repeated = next(name for index, name in enumerate(names) if name in names[:index])
    raise InvalidRequestError(f"{what} {quoted(repeated)} is given twice")
