"""What may go wrong with an answer, as a script says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dex_agents_testkit._script_fields import ScriptError, ScriptFields

DEFAULT_HOLD_SECONDS: Final = 120.0
DEFAULT_FAIL_CODE: Final = "server_error"
DEFAULT_STATUS_CODE: Final = "scripted_fault"


@dataclass(frozen=True, slots=True)
class StatusFault:
    """Answer with an HTTP error instead of a reply.

    `retry_after` asks to wait for seconds; `retry_after_date` asks the same with the date at which
    that time is over. `code` is the provider's own word for the error.
    """

    status: int
    message: str
    retry_after: float | None = None
    retry_after_date: float | None = None
    code: str = DEFAULT_STATUS_CODE
    times: int = 1


@dataclass(frozen=True, slots=True)
class HangUpFault:
    """Close the connection before the first byte of an answer."""

    times: int = 1


@dataclass(frozen=True, slots=True)
class DropFault:
    """Close the connection after so many events, without an end."""

    after: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class StallFault:
    """Send nothing for some seconds after so many events, then go on."""

    after: int
    seconds: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class FailFault:
    """Report a failed response after so many events, or instead of a whole response."""

    after: int
    message: str
    code: str = DEFAULT_FAIL_CODE
    times: int = 1


@dataclass(frozen=True, slots=True)
class HoldFault:
    """Wait at a named gate after so many events, until a test releases it; then go on."""

    gate: str
    after: int
    seconds: float
    times: int = 1


Fault = StatusFault | HangUpFault | DropFault | StallFault | FailFault | HoldFault


def read_fault(value: object, place: str) -> Fault:
    """Read one entry of `faults`.

    Raises:
        ScriptError: The entry is no fault; the message names its place.
    """
    fields = ScriptFields(value, place)
    times = fields.integer("times", 1, minimum=1)
    fault: Fault
    if "status" in fields:
        fault = _read_status(fields, times)
    elif "hang_up" in fields:
        if not fields.flag("hang_up"):
            raise fields.error("hang_up", "expected true; leave it out to answer")
        fault = HangUpFault(times)
    elif "drop_after" in fields:
        fault = DropFault(fields.integer("drop_after"), times)
    elif "stall_after" in fields:
        fault = StallFault(fields.integer("stall_after"), fields.seconds("seconds"), times)
    elif "fail_after" in fields:
        fault = FailFault(
            fields.integer("fail_after"),
            fields.text("message", "scripted failure"),
            fields.text("code", DEFAULT_FAIL_CODE),
            times,
        )
    elif "hold" in fields:
        gate, after = fields.text("hold"), fields.integer("after", 0)
        fault = HoldFault(gate, after, fields.seconds("seconds", DEFAULT_HOLD_SECONDS), times)
    else:
        raise ScriptError(
            place,
            "a fault has status, hang_up, drop_after, stall_after, fail_after or hold",
        )
    fields.end()
    return fault


def _read_status(fields: ScriptFields, times: int) -> StatusFault:
    status = fields.integer("status", minimum=400)
    fault = StatusFault(
        status,
        fields.text("message", f"scripted status {status}"),
        fields.optional_seconds("retry_after"),
        fields.optional_seconds("retry_after_date"),
        fields.text("code", DEFAULT_STATUS_CODE),
        times,
    )
    if fault.retry_after is not None and fault.retry_after_date is not None:
        raise fields.error("retry_after_date", "the header holds seconds or a date, not both")
    return fault
