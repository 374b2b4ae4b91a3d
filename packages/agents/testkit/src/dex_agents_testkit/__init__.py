"""Tools for testing durable agents: a scripted runner and a scripted model server.

The names below are loaded when they are first used, so that the model server starts without the
rest of the kit.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dex_agents_testkit._script_fields import ScriptError
    from dex_agents_testkit.runner_script import (
        FailureKind,
        RunnerScript,
        ScriptedFailure,
        ScriptedReply,
        ScriptedTool,
        ScriptedToolCall,
        ScriptedTurn,
        load_runner_script,
        parse_runner_script,
    )
    from dex_agents_testkit.scripted_runner import (
        ScriptedCallError,
        ScriptedRunner,
        ScriptMismatchError,
    )
    from dex_agents_testkit.scripted_worker import (
        scripted_log,
        scripted_session_flow,
        scripted_worker_env,
    )

_HOMES = {
    "FailureKind": "runner_script",
    "RunnerScript": "runner_script",
    "ScriptError": "_script_fields",
    "ScriptMismatchError": "scripted_runner",
    "ScriptedCallError": "scripted_runner",
    "ScriptedFailure": "runner_script",
    "ScriptedReply": "runner_script",
    "ScriptedRunner": "scripted_runner",
    "ScriptedTool": "runner_script",
    "ScriptedToolCall": "runner_script",
    "ScriptedTurn": "runner_script",
    "load_runner_script": "runner_script",
    "parse_runner_script": "runner_script",
    "scripted_log": "scripted_worker",
    "scripted_session_flow": "scripted_worker",
    "scripted_worker_env": "scripted_worker",
}

__all__ = [
    "FailureKind",
    "RunnerScript",
    "ScriptError",
    "ScriptMismatchError",
    "ScriptedCallError",
    "ScriptedFailure",
    "ScriptedReply",
    "ScriptedRunner",
    "ScriptedTool",
    "ScriptedToolCall",
    "ScriptedTurn",
    "load_runner_script",
    "parse_runner_script",
    "scripted_log",
    "scripted_session_flow",
    "scripted_worker_env",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
