"""A session Flow that plays a script, and a worker process that serves it.

A test and its workers build the same Flow from the same file:

    flow = scripted_session_flow(script_path, state_dir)
    async with AgentTestStack(
        tmp_path,
        [flow],
        "dex_agents_testkit.scripted_worker",
        worker_env=scripted_worker_env(script_path, state_dir),
    ) as stack:
        await stack.start_worker()
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from dex_agents import AgentSessionFlow, AgentSessionOptions
from dex_agents.testing import InvocationLog, run_agent_worker
from dex_agents_testkit.runner_script import RunnerScript
from dex_agents_testkit.scripted_runner import ScriptedRunner

FLOW_TYPE: Final = "ScriptedAgent"
LOG_NAME: Final = "calls.jsonl"
SCRIPT_VARIABLE: Final = "DEX_AGENTS_SCRIPT"
STATE_DIR_VARIABLE: Final = "DEX_AGENTS_SCRIPT_STATE_DIR"


def scripted_session_flow(
    script: RunnerScript | str | Path,
    state_dir: str | Path,
    *,
    flow_type: str = FLOW_TYPE,
    options: AgentSessionOptions | None = None,
) -> AgentSessionFlow:
    """Build a session Flow around a `ScriptedRunner`.

    Args:
        script: The script, or the path of its file.
        state_dir: Folder of the gates and of the invocation log.
        flow_type: Name of the Flow.
        options: Options of the Flow; policies of the script are added to those given.

    Raises:
        ScriptError: The script cannot be used.
    """
    runner = ScriptedRunner(script, log=scripted_log(state_dir), state_dir=state_dir)
    given = options or AgentSessionOptions()
    policies = {**runner.tool_policies(), **given.tool_policies}
    return AgentSessionFlow(
        runner, flow_type=flow_type, options=replace(given, tool_policies=policies)
    )


def scripted_log(state_dir: str | Path) -> InvocationLog:
    """Return the log in which a scripted Flow records its calls."""
    return InvocationLog(Path(state_dir) / LOG_NAME)


def scripted_worker_env(script_path: str | Path, state_dir: str | Path) -> dict[str, str]:
    """Return the environment that makes a worker of this module serve a script."""
    return {
        SCRIPT_VARIABLE: str(Path(script_path).absolute()),
        STATE_DIR_VARIABLE: str(Path(state_dir).absolute()),
    }


if __name__ == "__main__":
    run_agent_worker(
        [scripted_session_flow(os.environ[SCRIPT_VARIABLE], os.environ[STATE_DIR_VARIABLE])]
    )
