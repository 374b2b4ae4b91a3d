"""Runs the Python of one Markdown page: `python -m tools.docs.run_page PAGE`, in an empty folder.

The blocks share one namespace, as if they were one program, and one event loop: a block may await
at its top. Lines in a traceback are those of the page.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import subprocess
import sys
import types
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tools.docs.blocks import model_script, runnable


def run_page(page: Path) -> int:
    """Run the blocks of a page; return how many there were."""
    text = page.read_text(encoding="utf-8")
    blocks = runnable(text)
    # Types that a block defines are looked up in the module they claim to be from.
    module = types.ModuleType("__main__")
    module.__file__ = str(page)
    sys.modules["__main__"] = module
    with _model(model_script(page, text)), asyncio.Runner() as runner:
        for block in blocks:
            # Empty lines before it make line numbers those of the page.
            source = "\n" * (block.line - 1) + block.code
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(source, str(page), "exec", flags, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, module.__dict__))
            else:
                # Not inside the loop: such a block may call `asyncio.run` itself.
                exec(code, module.__dict__)
    return len(blocks)


@contextmanager
def _model(script: Path | None) -> Generator[None]:
    """Point the `openai` client at a scripted model, or at nothing at all."""
    # A page must never reach a real model, whatever the machine's settings are.
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        os.environ.pop(name, None)
    if script is None:
        yield
        return
    command = [sys.executable, "-m", "dex_agents_testkit.model_server"]
    options = ["--script", str(script), "--port", "0", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            os.environ["OPENAI_BASE_URL"] = json.loads(server.stdout.readline())["base_url"]
            os.environ["OPENAI_API_KEY"] = "scripted"
            # With a key set, the agents SDK would send its traces to the real provider.
            os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
            yield
        finally:
            server.terminate()


if __name__ == "__main__":
    count = run_page(Path(sys.argv[1]).resolve())
    print(f"{count} blocks ran")
