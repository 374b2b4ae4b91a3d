"""What a worker keeps of its sessions between tasks.

Only values that arrived loaded in a task enter: a value that a Step has just written may never be
committed. Stored messages, sealed blocks and final records never change, so nothing needs to be
invalidated; a session's run id is part of the key, because an id may be started again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from dex_agents._internal_values import AgentMessageSizes
from dex_agents._session.history import CachedKeys
from dex_agents.values import AgentMessage, AgentToolCall, AgentToolOutput

#: Seconds for which a session that is being loaded is kept even when the cache is full.
PIN_SECONDS: Final = 600.0

_ENTRY_OVERHEAD = 400


@dataclass
class CachedSession:
    """Decoded values of one session run.

    Attributes:
        prefix: The messages from the first one on, without a gap.
        loose: Messages beyond a gap, by sequence.
        blocks: Sealed blocks of sizes, by number.
        turn_id: Turn that `records` and `outputs` belong to.
        records: Final records of that turn, by tool call id.
        outputs: Results that are stored apart from their record, by tool call id.
        size: Approximate bytes of all this.
        pinned_until: Monotonic seconds until which it is kept in any case.
    """

    prefix: list[AgentMessage] = field(default_factory=list[AgentMessage])
    loose: dict[int, AgentMessage] = field(default_factory=dict[int, AgentMessage])
    blocks: dict[int, AgentMessageSizes] = field(default_factory=dict[int, AgentMessageSizes])
    turn_id: str = ""
    records: dict[str, AgentToolCall] = field(default_factory=dict[str, AgentToolCall])
    outputs: dict[str, AgentToolOutput] = field(default_factory=dict[str, AgentToolOutput])
    size: int = 0
    pinned_until: float = 0.0

    def keys(self) -> CachedKeys:
        """Return what is here, for planning."""
        return CachedKeys(
            self.loose, self.blocks, self.records, self.outputs, prefix=len(self.prefix)
        )

    def message(self, sequence: int) -> AgentMessage | None:
        """Return a message, or `None` when it is not here."""
        if sequence <= len(self.prefix):
            return self.prefix[sequence - 1]
        return self.loose.get(sequence)

    def add_message(self, message: AgentMessage) -> None:
        """Keep a message that arrived loaded."""
        if self.message(message.sequence) is not None:
            return
        self.loose[message.sequence] = message
        self.size += len(message.text) + len(message.framework_item) + _ENTRY_OVERHEAD
        while (following := self.loose.pop(len(self.prefix) + 1, None)) is not None:
            self.prefix.append(following)

    def add_block(self, number: int, block: AgentMessageSizes) -> None:
        """Keep a sealed block that arrived loaded."""
        if number not in self.blocks:
            self.blocks[number] = block
            self.size += 36 * len(block.message_bytes) + _ENTRY_OVERHEAD

    def add_record(self, record: AgentToolCall) -> None:
        """Keep a final record that arrived loaded."""
        if record.tool_call_id not in self.records:
            self.records[record.tool_call_id] = record
            self.size += len(record.arguments) + len(record.output or "") + _ENTRY_OVERHEAD

    def add_output(self, tool_call_id: str, output: AgentToolOutput) -> None:
        """Keep the separate result of a final record that arrived loaded."""
        if tool_call_id not in self.outputs:
            self.outputs[tool_call_id] = output
            self.size += len(output.output or "") + len(output.framework_payload or "")

    def clear(self) -> None:
        """Forget everything."""
        self.prefix = []
        self.loose, self.blocks, self.records, self.outputs = {}, {}, {}, {}
        self.size = 0

    def begin_turn(self, turn_id: str) -> None:
        """Forget the calls of an earlier turn; ids may repeat in a later one."""
        if turn_id != self.turn_id:
            self.turn_id = turn_id
            for record in self.records.values():
                self.size -= len(record.arguments) + len(record.output or "") + _ENTRY_OVERHEAD
            for output in self.outputs.values():
                self.size -= len(output.output or "") + len(output.framework_payload or "")
            self.records = {}
            self.outputs = {}


class SessionCache:
    """Bounded cache of the sessions one worker has served lately.

    Args:
        max_bytes: Bound of all sessions together. A session that is being loaded may exceed it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[tuple[str, str], CachedSession] = OrderedDict()

    def __repr__(self) -> str:
        return f"SessionCache({len(self._sessions)} sessions, {self.size} bytes)"

    @property
    def size(self) -> int:
        """Approximate bytes of everything in the cache."""
        return sum(session.size for session in self._sessions.values())

    def session(self, flow_id: str, run_id: str) -> CachedSession:
        """Return the entry of a session run, which is then the most recently used one."""
        key = (flow_id, run_id)
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = CachedSession()
        self._sessions.move_to_end(key)
        return found

    def peek(self, flow_id: str, run_id: str) -> CachedSession:
        """Return the entry of a session run, or an empty one that is not kept."""
        return self._sessions.get((flow_id, run_id)) or CachedSession()

    def trim(self, now: float) -> None:
        """Drop the least recently used sessions until the bound holds, but never the latest one.

        Args:
            now: Monotonic seconds, to tell which pins have ended.
        """
        total = self.size
        for key in list(self._sessions)[:-1]:
            if total <= self._max_bytes:
                return
            session = self._sessions[key]
            if session.pinned_until <= now:
                total -= session.size
                del self._sessions[key]
