"""Integration tests of agents: a private engine, workers that can be killed, gates and logs.

    async with AgentTestStack(tmp_path, [flow], "tests.my_worker", worker_cwd=HERE) as stack:
        sessions = stack.sessions(flow)
        worker = await stack.start_worker()
        await sessions.start_session("session-1", "refund order 7")
        worker.kill()
        await stack.start_worker()

The engine is that of the `dexcli` binary named by `DEXCLI`, or else the embedded engine.
"""

from dex_agents.testing._engine import EngineProcess, create_engine
from dex_agents.testing._files import FileGate, Invocation, InvocationLog
from dex_agents.testing._history import (
    EXECUTE_COMPLETED_EVENT,
    EXECUTE_FAILED_EVENT,
    WAIT_FOR_COMPLETED_EVENT,
    WAIT_FOR_FAILED_EVENT,
    StepHistoryEntry,
    read_step_history,
)
from dex_agents.testing._processes import (
    ChildProcess,
    ChildProcessError,
    StartedProcess,
    StartProcess,
    start_process,
)
from dex_agents.testing._stack import AgentTestStack, wait_for_agent_snapshot
from dex_agents.testing._waiting import WaitTimeoutError, wait_until
from dex_agents.testing._worker import WorkerProcess, run_agent_worker

__all__ = [
    "EXECUTE_COMPLETED_EVENT",
    "EXECUTE_FAILED_EVENT",
    "WAIT_FOR_COMPLETED_EVENT",
    "WAIT_FOR_FAILED_EVENT",
    "AgentTestStack",
    "ChildProcess",
    "ChildProcessError",
    "EngineProcess",
    "FileGate",
    "Invocation",
    "InvocationLog",
    "StartProcess",
    "StartedProcess",
    "StepHistoryEntry",
    "WaitTimeoutError",
    "WorkerProcess",
    "create_engine",
    "read_step_history",
    "run_agent_worker",
    "start_process",
    "wait_for_agent_snapshot",
    "wait_until",
]
