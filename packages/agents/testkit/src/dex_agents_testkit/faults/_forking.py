"""Starts processes as forks of a nursery, for tests that kill very many of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dex_agents.testing import StartedProcess, StartProcess, start_process
from dex_agents_testkit.faults._reaching import LIFELINE_VARIABLE

_READY_SECONDS: Final = 120.0
_PRELOADED: Final = ("dex_agents_testkit.faults", "dex_embedded.cli")


@contextmanager
def forked_start(log_path: Path, *modules: str) -> Generator[StartProcess]:
    """Start processes as forks of one that has imported what they need, for `AgentTestStack`.

        with forked_start(tmp_path / "nursery.log", "my_framework") as start:
            async with AgentTestStack(tmp_path, [flow], "my_worker", start=start) as stack:
                ...

    Only programs run by `python -m` are forked. Where there is no safe `fork` (all but Linux) each
    process is started anew.

    Args:
        log_path: File that gets what the process that forks prints itself.
        modules: What to import beside the engine and the kit; not modules that start threads when
            they are imported.
    """
    if sys.platform != "linux":
        yield start_process
        return
    nursery = Nursery({}, log_path, modules)
    try:
        yield nursery.start
    finally:
        nursery.close()


class ForkedProcess:
    """A fork of the nursery; what `ChildProcess` needs of it."""

    stdin = None

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._pid

    def poll(self) -> int | None:
        """Return how it ended, or `None` while it runs."""
        return self._nursery.code_of(self._pid)

    def wait(self) -> int:
        """Wait until it has ended and return how."""
        return self._nursery.wait_for(self._pid)


class Nursery:
    """Forks Python modules out of one process that has imported them. Close it at the end.

    Args:
        env: Environment of the nursery, which decides what is imported.
        log_path: File that gets what the nursery itself prints.
        modules: What it imports beside the engine and the kit.
    """

    def __init__(self, env: Mapping[str, str], log_path: Path, modules: Sequence[str] = ()) -> None:
        # The forks hold the read end only, so it ends for them when this process does.
        lifeline, self._lifeline = os.pipe()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dex_agents_testkit.faults.nursery", *_PRELOADED, *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **env, LIFELINE_VARIABLE: str(lifeline)},
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        os.close(lifeline)
        self._changed = threading.Condition()
        self._answers: list[dict[str, Any]] = []
        self._codes: dict[int, int] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()
        if "ready" not in self._next_answer():
            raise RuntimeError("the nursery did not say that it is ready")

    def start(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
    ) -> StartedProcess:
        """Start `python -m MODULE ARGUMENTS` as a fork, anything else as a child process."""
        program, *arguments = command
        if program != sys.executable or arguments[:1] != ["-m"]:
            return start_process(command, log_path=log_path, cwd=cwd, env=env)
        request = {
            "module": arguments[1:],
            "log": str(log_path.absolute()),
            "cwd": None if cwd is None else str(cwd),
            "env": dict(os.environ if env is None else env),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return ForkedProcess(self, int(self._next_answer()["started"]))

    def code_of(self, pid: int) -> int | None:
        """Return how a fork ended, or `None` while it runs."""
        with self._changed:
            return self._codes.get(pid)

    def wait_for(self, pid: int) -> int:
        """Wait until a fork has ended and return how."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes or self._ended)
            return self._codes.get(pid, 1)

    def close(self) -> None:
        """End the nursery; forks that still run see the end of their standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._lifeline)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _next_answer(self) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._ended, _READY_SECONDS)
            if not self._answers:
                raise RuntimeError("the nursery has ended; its log says why")
            return self._answers.pop(0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                if "ended" in answer:
                    self._codes[answer["ended"]] = answer["code"]
                else:
                    self._answers.append(answer)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
