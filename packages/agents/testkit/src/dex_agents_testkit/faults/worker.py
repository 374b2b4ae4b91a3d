"""The worker process of a `CrashableAgent`: serves the application's Flow and notes its places."""

from __future__ import annotations

import os

from dex_agents.testing import run_agent_worker
from dex_agents_testkit.faults._loading import load_flow
from dex_agents_testkit.faults._reaching import FLOW_VARIABLE, recorder
from dex_agents_testkit.faults._runner import RecordingRunner


def main() -> None:
    """Serve until the test ends."""
    flow = load_flow(os.environ[FLOW_VARIABLE])
    places = recorder()
    if places is not None:
        flow.wrap_runner(lambda runner: RecordingRunner(runner, places))
    run_agent_worker([flow])


if __name__ == "__main__":
    main()
