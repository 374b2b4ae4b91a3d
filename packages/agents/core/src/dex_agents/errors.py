"""Errors of the core, sorted by who has to react.

A *runner* raises `TurnFailedError`, `ModelError` and `ToolExecutionError` to tell the session what
a failure means. A *caller* of the client meets the `SessionError` family. A *developer* meets
`AgentDefinitionError` while an agent is being defined and `RunnerContractError` when a runner broke
its contract. Facts are attributes; the text says what happened, to which thing, and what to do.
"""

from __future__ import annotations

from datetime import timedelta


class DexAgentsError(Exception):
    """Root of every error that this package raises on purpose."""


# --- raised by a runner -------------------------------------------------------------------------


class TurnFailedError(DexAgentsError):
    """Ends the turn at once: the next attempt would fail in the same way.

    Raise it from `run_model_step` for a refused request, a tripped guardrail or an exhausted turn
    limit. The session makes no further attempt, so a hopeless model call is paid once.

    Attributes:
        message: What went wrong, for the person who reads `AgentState.last_turn_error`.
        error_type: Name of the kind of failure, for example the framework's exception class.
    """

    def __init__(self, message: str, error_type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type or type(self).__name__


class ModelError(DexAgentsError):
    """A model call failed in a way that another attempt may cure.

    Any other exception is retried too; this one adds how long to wait and a readable type. The
    wait replaces the back-off of the Step. It never extends the retry window: when the wait does
    not fit into what is left of the window, the turn fails at once.

    Attributes:
        message: What went wrong.
        error_type: Name of the kind of failure, for example the provider's exception class.
        retry_after: Seconds to wait before the next attempt, or `None` for the Step's back-off.
    """

    def __init__(
        self,
        message: str,
        error_type: str = "",
        *,
        retry_after: float | timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type or type(self).__name__
        self.retry_after: float | None = (
            retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        )


class ToolExecutionError(DexAgentsError):
    """A tool failed, and the model should read why.

    Raise it from `execute_deferred_tool_call`. The record becomes `failed` with this message and
    the call is not retried, whatever its effect. Raise it for a write only when nothing was done.

    Attributes:
        message: The text the model sees.
        framework_payload: Data the adapter wants back in the record, as JSON text, for example the
            framework's own form of the failure. Replaces the payload of the deferred call unless
            `None`. One above the session's limit for tool outputs is left out, with a warning in
            the log; the message is kept.
    """

    def __init__(self, message: str, *, framework_payload: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.framework_payload = framework_payload


# --- met by the developer of an agent or of a runner --------------------------------------------


class AgentDefinitionError(DexAgentsError):
    """An agent, its options or its policies cannot work as given; nothing was started."""


class RunnerContractError(DexAgentsError):
    """A runner returned something the session cannot use; the turn fails with this text."""


# --- met by the caller of the client ------------------------------------------------------------


class SessionError(DexAgentsError):
    """A call on one session could not be served.

    Attributes:
        session_id: The session the call was about.
    """

    def __init__(self, session_id: str, message: str) -> None:
        super().__init__(message)
        self.session_id = session_id


class InvalidSessionIdError(SessionError):
    """The session id cannot be used; nothing was sent.

    Attributes:
        character: The character that is not allowed, or an empty string for a blank id.
    """

    def __init__(self, session_id: str, message: str, character: str = "") -> None:
        super().__init__(session_id, message)
        self.character = character


class InvalidMessageIdError(SessionError):
    """The message id cannot be used; nothing was sent.

    Attributes:
        message_id: The id that was refused.
    """

    def __init__(self, session_id: str, message_id: str, message: str) -> None:
        super().__init__(session_id, message)
        self.message_id = message_id


class MessageTooLargeError(SessionError):
    """The message is too long to be stored; nothing was sent.

    Attributes:
        size: Bytes of the text.
        limit: Most bytes allowed.
    """

    def __init__(self, session_id: str, size: int, limit: int) -> None:
        super().__init__(
            session_id,
            f"the message has {size} bytes; at most {limit} are allowed, so send it in parts",
        )
        self.size = size
        self.limit = limit


class SessionAlreadyExistsError(SessionError):
    """The session was started before by another request; nothing was started or queued."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            session_id,
            f"session {session_id!r} already exists; send a message to it, or choose another id",
        )


class SessionNotFoundError(SessionError):
    """No session has this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            session_id, f"session {session_id!r} does not exist; start it with start_session"
        )


class SessionClosedError(SessionError):
    """The session has ended: it can be read, but takes no message, answer or stop.

    Attributes:
        status: How it ended, in the words of the engine, for example `canceled`.
    """

    def __init__(self, session_id: str, status: str) -> None:
        super().__init__(
            session_id,
            f"session {session_id!r} is closed ({status}); start a new one under another id",
        )
        self.status = status
