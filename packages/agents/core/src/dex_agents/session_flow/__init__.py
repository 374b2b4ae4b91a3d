"""The durable session Flow.

Each model call and each tool call is a Step of its own. The Steps are thin: what follows from an
outcome, a record or an answer is decided in `dex_agents._session`.
"""

from dex_agents.session_flow._flow import AgentSessionFlow
from dex_agents.session_flow._guard import StepFailedError
from dex_agents.session_flow._message_steps import (
    AwaitUserMessage,
    RecordTurnFailure,
    StartAgentSession,
)
from dex_agents.session_flow._model_step import RunModel
from dex_agents.session_flow._tool_steps import (
    AwaitToolApproval,
    CallSingleAttemptTool,
    CallTool,
    RecordToolFailure,
    RecordToolOutcomeUnknown,
    ResumeTurn,
)

__all__ = [
    "AgentSessionFlow",
    "AwaitToolApproval",
    "AwaitUserMessage",
    "CallSingleAttemptTool",
    "CallTool",
    "RecordToolFailure",
    "RecordToolOutcomeUnknown",
    "RecordTurnFailure",
    "ResumeTurn",
    "RunModel",
    "StartAgentSession",
    "StepFailedError",
]
