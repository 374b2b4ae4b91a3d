"""The session Flow: its Steps, its state and its RPCs."""

from __future__ import annotations

from collections.abc import Callable

from dex import (
    AttributeMapNotLoadedError,
    Context,
    Flow,
    PersistenceSchema,
    RPCResult,
    StepList,
    rpc,
)

from dex_agents._internal_values import AgentMessageSizes, KnownMessageId
from dex_agents._json_form import encoded_bytes
from dex_agents._session.approvals import find_interrupt, is_open, without_interrupt
from dex_agents._session.cache import SessionCache
from dex_agents._session.history import INDEXED_MESSAGES, MessageSizes, block_of, block_start
from dex_agents._session.ids import check_flow_type, message_id_key
from dex_agents._session.reading import (
    MAX_REPLY_BYTES,
    clamp_page_limit,
    cut_for_snapshot,
    known_sizes,
)
from dex_agents._session.text import MAX_TOOL_ERROR_BYTES, bound_bytes
from dex_agents.errors import DexAgentsError
from dex_agents.options import MAX_USER_MESSAGE_BYTES, AgentSessionOptions
from dex_agents.persistence import (
    AGENT_MESSAGE_IDS,
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    agent_events_stream,
    agent_persistence,
    message_sequence_key,
)
from dex_agents.runner import AgentFrameworkRunner
from dex_agents.session_flow._guard import guarded_sync
from dex_agents.session_flow._message_steps import (
    AwaitUserMessage,
    RecordTurnFailure,
    StartAgentSession,
)
from dex_agents.session_flow._model_step import RunModel
from dex_agents.session_flow._movements import Movements, StepTypes
from dex_agents.session_flow._runtime import SessionRuntime, utc_now
from dex_agents.session_flow._storing import (
    loaded_entry,
    session_index,
    store_interrupts,
    stored,
    stored_entry,
)
from dex_agents.session_flow._tool_steps import (
    AwaitToolApproval,
    CallSingleAttemptTool,
    CallTool,
    RecordToolFailure,
    RecordToolOutcomeUnknown,
    ResumeTurn,
)
from dex_agents.values import (
    AgentInterruptResolution,
    AgentMessage,
    AgentMessagesPage,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentUsage,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
)

#: Messages newer than the loaded ones that a snapshot looks past.
_LOOK_PAST = 2 * INDEXED_MESSAGES


class AgentSessionFlow(Flow[AgentSessionStartInput]):
    """One kind of durable agent session: one Flow execution is one session.

    Register one per agent, each with its own `flow_type`. All Steps are asynchronous, so the
    Registry needs `allow_async_handlers=True` and an `AsyncWorker` serves it.

    Args:
        runner: The agent, behind its framework's runner.
        flow_type: Name of the kind of session, unique on the server.
        options: How the sessions behave.

    Attributes:
        runner: The runner it was made with.
        options: Its options.
        agent_events: The Stream of live events of this Flow.

    Raises:
        AgentDefinitionError: `flow_type` cannot be used.
    """

    def __init__(
        self,
        runner: AgentFrameworkRunner,
        *,
        flow_type: str,
        options: AgentSessionOptions | None = None,
    ) -> None:
        check_flow_type(flow_type)
        self.runner = runner
        self.options = options or AgentSessionOptions()
        self.agent_events = agent_events_stream(self.options.agent_events_capacity_bytes)
        self._flow_type = flow_type
        session = SessionRuntime(
            runner, self.options, self.agent_events, SessionCache(self.options.message_cache_bytes)
        )
        self._session = session
        steps = StepTypes(
            AwaitUserMessage,
            RunModel,
            AwaitToolApproval,
            CallTool,
            CallSingleAttemptTool,
            RecordToolFailure,
            RecordToolOutcomeUnknown,
            ResumeTurn,
            RecordTurnFailure,
        )
        session.movements = Movements(steps, self.options)
        start = StepList[AgentSessionStartInput].start_step(StartAgentSession(session))
        self._steps = start.other_steps(
            AwaitUserMessage(session),
            RunModel(session),
            AwaitToolApproval(session),
            CallTool(session),
            CallSingleAttemptTool(session),
            RecordToolFailure(session),
            RecordToolOutcomeUnknown(session),
            ResumeTurn(session),
            RecordTurnFailure(session),
        )

    def wrap_runner(self, wrap: Callable[[AgentFrameworkRunner], AgentFrameworkRunner]) -> None:
        """Put something around the runner, such as a recorder; call it before the Flow is served.

        Args:
            wrap: Returns the runner to use, given the present one.
        """
        self.runner = self._session.runner = wrap(self.runner)

    def get_flow_type(self) -> str:
        """Return the name of the kind of session."""
        return self._flow_type

    def get_steps(self) -> StepList[AgentSessionStartInput]:
        """Return the Steps of a session."""
        return self._steps

    def get_persistence_schema(self) -> PersistenceSchema:
        """Return what a session stores."""
        return agent_persistence(self.agent_events)

    @rpc(is_transactional=True)
    @guarded_sync
    def send_user_message(self, context: Context, message: AgentUserMessage) -> RPCResult[bool]:
        """Queue a user message.

        A message with an id needs that id's `AgentMessageIds` entry locked and loaded, as
        `AgentSessionClient` does; an id that is known already is answered `True` and dropped.

        Returns:
            `False` for blank text, else `True`.
        """
        if not message.text.strip():
            return RPCResult(False)
        size = len(message.text.encode("utf-8", "surrogatepass"))
        if size > MAX_USER_MESSAGE_BYTES:
            raise DexAgentsError(
                f"a user message has at most {MAX_USER_MESSAGE_BYTES} bytes, not {size}"
            )
        if message.message_id:
            key = message_id_key(message.message_id)
            try:
                known = stored_entry(context, AGENT_MESSAGE_IDS, key)
            except AttributeMapNotLoadedError:
                raise DexAgentsError(
                    "a message with an id needs its AgentMessageIds entry loaded and locked; "
                    "send it with AgentSessionClient, or leave the id out"
                ) from None
            if known is not None:
                return RPCResult(True)
            AGENT_MESSAGE_IDS.set(context, key, KnownMessageId(message.message_id))
        QUEUED_USER_MESSAGES.publish(context, message)
        return RPCResult(True)

    @rpc(lock_attributes=(PENDING_INTERRUPTS.lock(),))
    @guarded_sync
    def resolve_interrupt(
        self, context: Context, request: ResolveInterruptRequest
    ) -> RPCResult[bool]:
        """Answer an approval: it is pending no more, and its Step gets the answer, in one commit.

        Returns:
            `False` when the interrupt is not pending or past its deadline, else `True`.
        """
        pending = stored(context, PENDING_INTERRUPTS) or []
        interrupt = find_interrupt(pending, request.interrupt_id)
        if interrupt is None or not is_open(interrupt, utc_now()):
            return RPCResult(False)
        message = None if request.approved else request.rejection_message
        resolution = AgentInterruptResolution(
            request.approved,
            None if message is None else bound_bytes(message, MAX_TOOL_ERROR_BYTES),
        )
        INTERRUPT_RESOLUTIONS.publish(context, interrupt.interrupt_id, resolution)
        store_interrupts(context, without_interrupt(pending, interrupt.interrupt_id))
        return RPCResult(True)

    @rpc
    @guarded_sync
    def get_agent_snapshot(self, context: Context) -> RPCResult[AgentSnapshot]:
        """Return the state, and of messages and tool calls what the call has loaded.

        Which keys there are is known only from the state, so `AgentSessionClient` asks with exact
        keys. A plain `invoke_rpc` returns everything else.
        """
        state = stored(context, AGENT_STATE)
        index = session_index(context)
        sizes = MessageSizes(0 if state is None else state.message_count, index, {})
        calls = [
            record
            for entry in index.tool_calls
            if (record := loaded_entry(context, AGENT_TOOL_CALLS, entry.tool_call_id)) is not None
        ]
        return RPCResult(
            AgentSnapshot(
                state,
                self._newest_loaded(context, sizes),
                tuple(stored(context, PENDING_INTERRUPTS) or ()),
                tuple(map(cut_for_snapshot, calls)),
                stored(context, AGENT_USAGE) or AgentUsage(),
                QUEUED_USER_MESSAGES.size(context),
                index=index,
            )
        )

    @rpc
    @guarded_sync
    def list_agent_messages(
        self, context: Context, request: ListAgentMessagesRequest
    ) -> RPCResult[AgentMessagesPage]:
        """Return a page of messages, oldest first, as far as the call has loaded them.

        `AgentSessionClient` asks with exact keys; a plain `invoke_rpc` returns an empty page that
        says whether there are messages.
        """
        state = stored(context, AGENT_STATE)
        count = 0 if state is None else state.message_count
        after = max(0, request.after_sequence)
        last = min(count, after + clamp_page_limit(request.limit))
        sizes = MessageSizes(
            count, session_index(context), self._loaded_blocks(context, after, last)
        )
        messages: list[AgentMessage] = []
        used = 0
        for sequence in range(after + 1, last + 1):
            message = loaded_entry(context, AGENT_MESSAGES, message_sequence_key(sequence))
            if message is None:
                break
            used += sizes.of(sequence) or encoded_bytes(message)
            if messages and used > MAX_REPLY_BYTES:
                break
            messages.append(message)
        reached = after + len(messages)
        return RPCResult(
            AgentMessagesPage(
                tuple(messages), reached, reached < count, sizes=known_sizes(sizes, after, last)
            )
        )

    @staticmethod
    def _newest_loaded(context: Context, sizes: MessageSizes) -> tuple[AgentMessage, ...]:
        """Return the newest unbroken run of loaded messages, oldest first."""
        messages: list[AgentMessage] = []
        used = 0
        for sequence in range(sizes.count, max(0, sizes.count - _LOOK_PAST), -1):
            message = loaded_entry(context, AGENT_MESSAGES, message_sequence_key(sequence))
            if message is None:
                if messages:
                    break
                continue
            used += sizes.of(sequence) or encoded_bytes(message)
            if messages and (used > MAX_REPLY_BYTES or len(messages) >= INDEXED_MESSAGES):
                break
            messages.append(message)
        messages.reverse()
        return tuple(messages)

    @staticmethod
    def _loaded_blocks(context: Context, after: int, last: int) -> dict[int, AgentMessageSizes]:
        blocks: dict[int, AgentMessageSizes] = {}
        if last > after:
            for number in range(block_of(after + 1), block_of(last) + 1):
                key = message_sequence_key(block_start(number))
                block = loaded_entry(context, AGENT_MESSAGE_SIZES, key)
                if block is not None:
                    blocks[number] = block
        return blocks
