"""`python -m dex_agents.testing._engine_child ARGS`: the `dex-embedded` command for tests.

It ends when standard input closes, so that no engine outlives a test run that was killed.
Everything else is the command itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading


def _stop_at_end_of_input() -> None:
    # Not through `sys.stdin`, whose lock would be held when the interpreter ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    runpy.run_module("dex_embedded", run_name="__main__", alter_sys=True)
