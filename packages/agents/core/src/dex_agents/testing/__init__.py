"""Integration tests of agents on a private engine with worker processes that can be killed."""

from dex_agents.testing._files import FileGate, Invocation, InvocationLog
from dex_agents.testing._history import (
    EXECUTE_COMPLETED_EVENT,
    EXECUTE_FAILED_EVENT,
    WAIT_FOR_COMPLETED_EVENT,
    WAIT_FOR_FAILED_EVENT,
    StepHistoryEntry,
    read_step_history,
)
from dex_agents.testing._processes import ChildProcess, ChildProcessError
from dex_agents.testing._waiting import WaitTimeoutError, wait_until

__all__ = [
    "EXECUTE_COMPLETED_EVENT",
    "EXECUTE_FAILED_EVENT",
    "WAIT_FOR_COMPLETED_EVENT",
    "WAIT_FOR_FAILED_EVENT",
    "ChildProcess",
    "ChildProcessError",
    "FileGate",
    "Invocation",
    "InvocationLog",
    "StepHistoryEntry",
    "WaitTimeoutError",
    "read_step_history",
    "wait_until",
]
