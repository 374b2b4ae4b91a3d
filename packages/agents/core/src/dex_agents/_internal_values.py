"""Values that the session keeps for itself: sizes, used message ids and the model Step's budget."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dex_agents._value_base import StoredValue


@dataclass(frozen=True)
class KnownMessageId(StoredValue):
    """Marks a message id as used.

    Attributes:
        message_id: The id as the sender gave it.
    """

    message_id: str


@dataclass(frozen=True)
class ToolCallEntry(StoredValue):
    """What the session's index knows about one tool call of the running turn.

    Attributes:
        tool_call_id: The call.
        record_bytes: Size of its record: as deferred, then as final.
        output_bytes: Size of what is stored apart from the record, once the call is final.
    """

    tool_call_id: str
    record_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class AgentSessionIndex(StoredValue):
    """Sizes that tell what a Step or a caller may load at once. It travels with every task.

    Attributes:
        message_bytes: Sizes of the newest messages, oldest first: of all that are in no sealed
            block, and of 200 at least.
        sealed_blocks: Number of sealed blocks in the `AgentMessageSizes` map.
        tool_calls: The calls of the running turn in model order.
        counted_tool_calls: How many of them have their usage in the session's total.
        round_start: Position of the first call of the newest model response.
    """

    message_bytes: tuple[int, ...] = ()
    sealed_blocks: int = 0
    tool_calls: tuple[ToolCallEntry, ...] = ()
    counted_tool_calls: int = 0
    round_start: int = 0

    def _repair(self) -> None:
        self._repair_tuple("message_bytes")
        self._repair_values("tool_calls", ToolCallEntry)


@dataclass(frozen=True)
class AgentMessageSizes(StoredValue):
    """Sizes of one block of messages. Written once, when the block is full.

    Attributes:
        message_bytes: Size of each message as stored, in order.
    """

    message_bytes: tuple[int, ...] = ()

    def _repair(self) -> None:
        self._repair_tuple("message_bytes")


@dataclass(frozen=True)
class ModelStepBudget(StoredValue):
    """What a model Step has used up when it hands itself on to load more history.

    Attributes:
        attempts_used: Attempts that may have made the model call.
        first_attempt_at: When the first of them began.
        hops: How often the Step handed itself on.
        max_hops: When to give up.
    """

    attempts_used: int
    first_attempt_at: datetime
    hops: int
    max_hops: int

    def _repair(self) -> None:
        self._repair_datetime("first_attempt_at")
