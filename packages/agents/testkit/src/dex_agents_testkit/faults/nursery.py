"""`python -m dex_agents_testkit.faults.nursery MODULE...`: forks programs that need these modules.

A process that is killed hundreds of times spends nearly all of its life importing. Here the imports
are made once, and each process is a fork that goes on from there. Requests come as lines of JSON on
standard input, answers go to standard output; the nursery ends with its standard input.

Nothing is ever started here but forks: no thread, no event loop, no channel, since none of them
survives a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import runpy
import select
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

from dex_agents_testkit.faults._reaching import LIFELINE_VARIABLE


def main(modules: list[str]) -> None:
    """Serve until standard input ends."""
    for module in modules:
        importlib.import_module(module)
    _tell({"ready": True})
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _wake)
    buffered = b""
    while True:
        readable, _, _ = select.select([0, wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap()
        if 0 in readable:
            read = os.read(0, 65536)
            if not read:
                return
            *lines, buffered = (buffered + read).split(b"\n")
            for line in lines:
                _start(json.loads(line), (wake_read, wake_write))


def _start(request: dict[str, Any], own: tuple[int, int]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(request, own)
    with contextlib.suppress(OSError):
        # Both sides do it, so that the group is there for whoever comes first.
        os.setpgid(pid, pid)
    _tell({"started": pid})


def _become(request: dict[str, Any], own: tuple[int, int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        # Opened anew, or a fork that makes it non-blocking would do so for all of them.
        inherited = int(os.environ[LIFELINE_VARIABLE])
        lifeline = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY)
        os.dup2(lifeline, 0)
        os.close(lifeline)
        os.close(inherited)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(request["env"])
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        # As `python -m` does.
        sys.path.insert(0, os.getcwd())
        random.seed()
        module, *arguments = request["module"]
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: it is enough that the signal is not ignored, so that the pipe tells of it."""


def _tell(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
