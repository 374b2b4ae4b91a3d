"""The client of a session Flow: start, talk to, look at, answer and stop sessions."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import uuid4

from dex import (
    AsyncClient,
    AttributeMapLoad,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    RPCInvokeOptions,
    SearchFlowEntry,
    StartFlowOptions,
    StopFlowOptions,
    StopType,
    StreamMessage,
)

from dex_agents._internal_values import AgentSessionIndex, KnownMessageId
from dex_agents._repeating import while_locked, while_unavailable
from dex_agents._session.history import (
    INDEXED_MESSAGES,
    MessageSizes,
    block_of,
    block_start,
    newest_messages,
)
from dex_agents._session.ids import check_message_id, check_session_id, message_id_key
from dex_agents._session.reading import MAX_REPLY_BYTES, clamp_page_limit, take_while_fitting
from dex_agents.codecs import uses_agent_codecs
from dex_agents.errors import (
    MessageTooLargeError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionNotFoundError,
)
from dex_agents.options import MAX_USER_MESSAGE_BYTES
from dex_agents.persistence import (
    AGENT_MESSAGE_IDS,
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_STATUS,
    AGENT_TOOL_CALLS,
    PENDING_APPROVAL_COUNT,
    message_sequence_key,
)
from dex_agents.session_flow import AgentSessionFlow
from dex_agents.values import (
    AgentEvent,
    AgentMessagesPage,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentStatus,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
)

ResultT = TypeVar("ResultT")

_REMEMBERED_SESSIONS: Final = 1000
_MORE_SNAPSHOT_CALLS: Final = 3
#: Keys of messages that may have been stored since the state was read; absent ones cost nothing.
_KEYS_AHEAD: Final = 8

_LOG = logging.getLogger("dex_agents")


@dataclass(frozen=True)
class AgentSessionEntry:
    """One session in a list.

    Attributes:
        session_id: Id of the session.
        is_open: Whether it takes messages.
        flow_status: State of its Flow execution in the engine's words, for example `running`.
        agent_status: What the session does, or `None` before its first Step has committed.
        pending_approval_count: Questions that wait for a person.
        started_at: When it was started.
        closed_at: When it ended, or `None`.
    """

    session_id: str
    is_open: bool
    flow_status: str
    agent_status: AgentStatus | None
    pending_approval_count: int
    started_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True)
class AgentSessionsPage:
    """One page of sessions.

    Attributes:
        sessions: The sessions, in the engine's order.
        next_page_token: Pass it to get the next page; empty on the last one.
    """

    sessions: tuple[AgentSessionEntry, ...]
    next_page_token: str


class AgentSessionClient:
    """Talks to the sessions of one Flow. Safe to use from concurrent tasks.

    Args:
        client: An open SDK client whose Registry holds the Flow.
        flow: The Flow object that is registered.

    Attributes:
        uses_agent_codecs: Whether the Registry has the explicit codecs. Without them the client
            works, but cannot read what other releases stored.
    """

    def __init__(self, client: AsyncClient, flow: AgentSessionFlow) -> None:
        self._client = client
        self._flow = flow
        self._seen: OrderedDict[str, tuple[int, AgentSessionIndex]] = OrderedDict()
        self.uses_agent_codecs = uses_agent_codecs(client.registry.codec_registry)
        if not self.uses_agent_codecs:
            _LOG.warning(
                "the Registry of Flow %s has no agent codecs; "
                "pass CodecRegistry(agent_codecs()) so that sessions of other releases can be read",
                flow.get_flow_type(),
            )

    async def start_session(
        self, session_id: str, initial_message: str = "", *, message_id: str | None = None
    ) -> str:
        """Start a session.

        The message id makes the call repeatable: the same id again succeeds and changes nothing.

        Args:
            session_id: Id of the new session; without `/`, `:` and `$`.
            initial_message: First user message; a blank one starts no turn.
            message_id: Id of that message; made up when `None`.

        Returns:
            The id of the run, which the server assigned.

        Raises:
            SessionAlreadyExistsError: The id was used by another start; nothing is queued.
            InvalidSessionIdError: The id cannot be used.
            InvalidMessageIdError: The message id cannot be used.
            MessageTooLargeError: The message is too long.
        """
        check_session_id(session_id)
        message_id = _check_id(session_id, message_id)
        _check_text(session_id, initial_message)
        options = StartFlowOptions(ignore_already_started=True, request_id=message_id)
        if initial_message.strip():
            # Known from the first moment, so a message sent with the same id is dropped.
            options = options.with_attribute(
                AGENT_MESSAGE_IDS, message_id_key(message_id), KnownMessageId(message_id)
            )
        start = AgentSessionStartInput(initial_message, message_id)
        try:
            return await while_unavailable(
                lambda: self._client.start_flow(self._flow, session_id, start, options)
            )
        except FlowAlreadyStartedError:
            raise SessionAlreadyExistsError(session_id) from None

    async def send_user_message(
        self, session_id: str, text: str, *, message_id: str | None = None
    ) -> bool:
        """Queue a user message; it starts a turn once the turns before it have ended.

        The message id makes the call repeatable: an id that is known already is dropped and
        answered `True`. The last 1,000 ids of a session are known.

        Args:
            session_id: The session.
            text: What the user wrote.
            message_id: Id of the message; made up when `None`, before the first try.

        Returns:
            `False` for blank text, which is not queued.

        Raises:
            SessionNotFoundError: There is no such session.
            SessionClosedError: The session has ended.
            InvalidMessageIdError: The message id cannot be used.
            MessageTooLargeError: The text is too long.
        """
        check_session_id(session_id)
        if not text.strip():
            return False
        message_id = _check_id(session_id, message_id)
        _check_text(session_id, text)
        key = message_id_key(message_id)
        options = RPCInvokeOptions(
            lock_attribute_map_instances=(AGENT_MESSAGE_IDS.lock(key),),
            load_attribute_map_instances=(AGENT_MESSAGE_IDS.load(key),),
        )
        message = AgentUserMessage(text, message_id)
        return await self._active(
            session_id,
            lambda: while_unavailable(
                lambda: while_locked(
                    lambda: self._client.invoke_rpc(
                        self._flow.send_user_message, session_id, message, options=options
                    )
                )
            ),
        )

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        rejection_message: str | None = None,
    ) -> bool:
        """Answer an approval.

        Args:
            session_id: The session.
            interrupt_id: From `AgentSnapshot.pending_interrupts` or an `interrupt_raised` event.
            approved: Whether the tool call may run.
            rejection_message: What the model reads when it may not; dropped on approval.

        Returns:
            `False` when the question is not pending any more, for example because somebody else
            has answered it or its deadline has passed.

        Raises:
            SessionNotFoundError: There is no such session.
            SessionClosedError: The session has ended.
            RpcLockConflictError: The lock was held for more than 5 seconds.
        """
        check_session_id(session_id)
        request = ResolveInterruptRequest(interrupt_id, approved, rejection_message)
        return await self._active(
            session_id,
            lambda: while_locked(
                lambda: self._client.invoke_rpc(self._flow.resolve_interrupt, session_id, request)
            ),
        )

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """Look at a session: state, newest messages, questions, running tool calls and usage.

        At most 200 messages and 2 MB of them; long tool outputs are cut. Takes one call when the
        session is as this client saw it last, else two: one tells what there is, one loads it. A
        session that moves on in between is asked again, twice at most. A closed session can still
        be looked at for as long as the engine keeps it.

        Args:
            session_id: The session.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        check_session_id(session_id)
        count, index = self._seen.get(session_id, (0, AgentSessionIndex()))
        snapshot = await self._read_snapshot(session_id, count, index)
        now_count = 0 if snapshot.state is None else snapshot.state.message_count
        now_index = snapshot.index or AgentSessionIndex()
        for _ in range(_MORE_SNAPSHOT_CALLS):
            if _covers(snapshot, now_count, now_index):
                break
            snapshot = await self._read_snapshot(session_id, now_count, now_index)
            now_count = 0 if snapshot.state is None else snapshot.state.message_count
            now_index = snapshot.index or AgentSessionIndex()
        self._seen[session_id] = (now_count, now_index)
        self._seen.move_to_end(session_id)
        while len(self._seen) > _REMEMBERED_SESSIONS:
            self._seen.popitem(last=False)
        return replace(snapshot, index=None)

    async def list_agent_messages(
        self, session_id: str, after_sequence: int = 0, limit: int = 200
    ) -> AgentMessagesPage:
        """Read stored messages, oldest first.

        Takes one call for the sizes and one for the messages.

        Args:
            session_id: The session.
            after_sequence: Read messages with a higher sequence; 0 for the beginning.
            limit: Most messages to return, clamped to 1..200; a page has at most 2 MB.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        check_session_id(session_id)
        request = ListAgentMessagesRequest(max(0, after_sequence), clamp_page_limit(limit))
        first = request.after_sequence + 1
        blocks = {block_of(first), block_of(first + request.limit - 1)}
        sizes = await self._invoke_list(
            session_id,
            request,
            tuple(
                AGENT_MESSAGE_SIZES.load(message_sequence_key(block_start(block)))
                for block in sorted(blocks)
            ),
        )
        chosen = take_while_fitting(first, sizes.sizes)
        if not chosen:
            return replace(sizes, sizes=())
        page = await self._invoke_list(
            session_id,
            request,
            tuple(AGENT_MESSAGES.load(message_sequence_key(sequence)) for sequence in chosen),
        )
        return replace(page, sizes=())

    async def read_agent_event(
        self, session_id: str, resume_token: str = "", timeout: timedelta | None = None
    ) -> StreamMessage[AgentEvent]:
        """Wait for the next live event.

        Events are best effort and may repeat; rebuild from `get_agent_snapshot` after a gap.

        Args:
            session_id: The session; it need not exist yet.
            resume_token: Token of the event before, or an empty string for the oldest one kept.
            timeout: Whole seconds to wait on the server; `None` for its default.

        Raises:
            LongPollTimeoutError: No event came in time; call again with the same token.
        """
        check_session_id(session_id)
        return await self._client.read_stream(
            session_id, self._flow.agent_events, resume_token, timeout
        )

    async def stop_session(self, session_id: str, reason: str = "") -> None:
        """End a session. A running model or tool call is cancelled; nothing else is run.

        Args:
            session_id: The session.
            reason: Kept with the closed session.

        Raises:
            SessionNotFoundError: There is no such session.
            SessionClosedError: The session has ended before.
        """
        check_session_id(session_id)
        options = StopFlowOptions(StopType.CANCEL, reason or None)
        await self._active(session_id, lambda: self._client.stop_flow(session_id, options))

    async def list_sessions(
        self,
        *,
        status: AgentStatus | None = None,
        waiting_for_approval: bool = False,
        include_closed: bool = False,
        page_size: int = 100,
        page_token: str = "",
    ) -> AgentSessionsPage:
        """Find sessions of this Flow.

        Args:
            status: Only sessions that do this.
            waiting_for_approval: Only sessions with a question to a person.
            include_closed: Also sessions that have ended.
            page_size: Most sessions to return.
            page_token: `next_page_token` of the page before.
        """
        terms = [f"FlowType = '{_quoted(self._flow.get_flow_type())}'"]
        if not include_closed:
            terms.append("ExecutionStatus = 'Running'")
        if status is not None:
            terms.append(f"{AGENT_STATUS.name} = '{AgentStatus(status).value}'")
        if waiting_for_approval:
            terms.append(f"{PENDING_APPROVAL_COUNT.name} > 0")
        query = " AND ".join(terms)
        found = await while_unavailable(
            lambda: self._client.search_flows(query, page_size, page_token)
        )
        return AgentSessionsPage(tuple(map(_session_entry, found.flows)), found.next_page_token)

    # --- inside ---------------------------------------------------------------------------------

    async def _read_snapshot(
        self, session_id: str, count: int, index: AgentSessionIndex
    ) -> AgentSnapshot:
        newest = newest_messages(MessageSizes(count, index, {}), MAX_REPLY_BYTES, INDEXED_MESSAGES)
        ahead = range(count + 1, count + 1 + _KEYS_AHEAD) if count else ()
        options = RPCInvokeOptions(
            load_attribute_map_instances=(
                *(AGENT_MESSAGES.load(message_sequence_key(s)) for s in (*newest, *ahead)),
                *(AGENT_TOOL_CALLS.load(entry.tool_call_id) for entry in index.tool_calls),
            )
        )
        return await self._existing(
            session_id,
            lambda: self._client.invoke_rpc(
                self._flow.get_agent_snapshot, session_id, options=options
            ),
        )

    async def _invoke_list(
        self,
        session_id: str,
        request: ListAgentMessagesRequest,
        loads: tuple[AttributeMapLoad, ...],
    ) -> AgentMessagesPage:
        options = RPCInvokeOptions(load_attribute_map_instances=loads)
        return await self._existing(
            session_id,
            lambda: self._client.invoke_rpc(
                self._flow.list_agent_messages, session_id, request, options=options
            ),
        )

    async def _existing(self, session_id: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run a read; a missing session becomes `SessionNotFoundError`."""
        try:
            return await while_unavailable(call)
        except FlowNotActiveOrNotFoundError:
            raise SessionNotFoundError(session_id) from None

    async def _active(self, session_id: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run a change; tell a missing session from a closed one, which the engine does not."""
        try:
            return await call()
        except FlowNotActiveOrNotFoundError:
            try:
                described = await self._client.describe_flow(session_id)
            except FlowNotFoundError:
                raise SessionNotFoundError(session_id) from None
            raise SessionClosedError(session_id, described.status.value) from None


def _check_id(session_id: str, message_id: str | None) -> str:
    if message_id is None:
        return uuid4().hex
    check_message_id(session_id, message_id)
    return message_id


def _check_text(session_id: str, text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_USER_MESSAGE_BYTES:
        raise MessageTooLargeError(session_id, size, MAX_USER_MESSAGE_BYTES)


def _covers(snapshot: AgentSnapshot, count: int, index: AgentSessionIndex) -> bool:
    """Whether a snapshot holds the newest messages and the running tool calls."""
    wanted = newest_messages(MessageSizes(count, index, {}), MAX_REPLY_BYTES, INDEXED_MESSAGES)
    held = [message.sequence for message in snapshot.messages]
    if held[-len(wanted) :] != wanted and wanted:
        return False
    return len(snapshot.tool_calls) == len(index.tool_calls)


def _session_entry(entry: SearchFlowEntry) -> AgentSessionEntry:
    status = entry.indexed_attributes.get(AGENT_STATUS.name)
    waiting = entry.indexed_attributes.get(PENDING_APPROVAL_COUNT.name)
    return AgentSessionEntry(
        entry.flow_id,
        entry.status is FlowStatus.RUNNING,
        entry.status.value,
        AgentStatus(str(status.data)) if status is not None else None,
        int(waiting.data) if waiting is not None else 0,
        entry.started_at,
        entry.closed_at,
    )


def _quoted(text: str) -> str:
    return text.replace("'", "''")
