"""Serves all examples in a worker process that dies where a test wants it, and comes back at once.

The program imports everything once and forks: the child serves, and when it was killed, the next
one starts without importing anything again. What the examples do is written to two logs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from agents import OpenAIProvider, OpenAIResponsesModel, RunConfig, Runner
from agents.mcp import MCPServerStdio
from dex import Step
from openai import AsyncOpenAI

from dex_agents import AgentSessionFlow
from dex_agents.local import open_sessions
from dex_agents.testing import InvocationLog
from dex_agents.testing._worker import READY_VARIABLE, SERVER_VARIABLE, _write_ready_file
from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_openai_agents._steps import tool_step
from dex_agents_testkit.model_server import load_model_script, serve_model_script

EXAMPLES = Path(__file__).resolve().parents[4] / "docs" / "examples" / "agents"
FOLDER_VARIABLE = "EXAMPLES_FOLDER"
MODELS_VARIABLE = "EXAMPLES_MODELS"
#: While a kill is wanted: session, place, and which arrival there.
KILL_FILE = "kill.json"
#: The process that was killed so.
KILLED_FILE = "killed.json"
#: The process that serves.
WORKER_FILE = "worker.pid"

#: The Step method that runs, and its session.
_running: ContextVar[tuple[str, str]] = ContextVar("running")


def load_example(name: str) -> Any:
    """Import an example as its own program would: from its folder."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


class Witness:
    """Notes what Steps, model calls and tool bodies come to, and dies at the place a test chose.

    Args:
        folder: Where the logs are, and the kill file while a kill is wanted.
    """

    def __init__(self, folder: Path) -> None:
        self._arrivals = InvocationLog(folder / "arrivals.log")
        self._bodies = InvocationLog(folder / "bodies.log")
        self._wanted = folder / KILL_FILE
        self._killed = folder / KILLED_FILE
        self._counts: Counter[tuple[str, str]] = Counter()

    def watch_steps(self, flow: AgentSessionFlow) -> None:
        """Note every Step of a flow as it begins, before any of it is done, and as it ends."""
        for definition in flow.get_steps()._definitions:
            kind = type(definition.step)
            for method in ("wait_for", "execute"):
                handler = getattr(kind, method)
                if handler is not getattr(Step, method) and not hasattr(handler, "is_watched"):
                    setattr(kind, method, self._watched(handler, f"{kind.__name__}.{method}"))

    def watch_models(self) -> None:
        """Note every request to a model before it is sent, and its answer when it is all here."""
        stream, whole = OpenAIResponsesModel.stream_response, OpenAIResponsesModel.get_response

        async def stream_response(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            self._arrive("asks")
            async for event in stream(*args, **kwargs):
                yield event
            self._arrive("is answered")

        async def get_response(*args: Any, **kwargs: Any) -> Any:
            self._arrive("asks")
            response = await whole(*args, **kwargs)
            self._arrive("is answered")
            return response

        setattr(OpenAIResponsesModel, "stream_response", stream_response)  # noqa: B010 - a patch
        setattr(OpenAIResponsesModel, "get_response", get_response)  # noqa: B010 - a patch

    def watch_bodies(self) -> None:
        """Note every tool body as it begins and as it ends."""
        hooks = tool_step._ToolHooks
        started, ended = hooks.on_tool_start, hooks.on_tool_end

        @functools.wraps(started)
        async def on_tool_start(own: Any, context: Any, agent: Any, tool: Any) -> None:
            self._bodies.record(tool.name, session=own._run_config.group_id)
            self._arrive("runs the tool")
            await started(own, context, agent, tool)

        @functools.wraps(ended)
        async def on_tool_end(own: Any, context: Any, agent: Any, tool: Any, output: Any) -> None:
            self._arrive("has run the tool")
            await ended(own, context, agent, tool, output)

        setattr(hooks, "on_tool_start", on_tool_start)  # noqa: B010 - a patch, whatever its type
        setattr(hooks, "on_tool_end", on_tool_end)  # noqa: B010 - a patch

    def _watched(self, handler: Callable[..., Any], method: str) -> Callable[..., Any]:
        @functools.wraps(handler)
        def watched(step: Any, context: Any, *rest: Any) -> Any:
            _running.set((method, context.flow_id))
            self._arrive("begins")
            result = handler(step, context, *rest)
            self._arrive("ends")
            return result

        @functools.wraps(handler)
        async def watched_async(step: Any, context: Any, *rest: Any) -> Any:
            _running.set((method, context.flow_id))
            self._arrive("begins")
            result = await handler(step, context, *rest)
            self._arrive("ends")
            return result

        chosen = watched_async if inspect.iscoroutinefunction(handler) else watched
        chosen.__dict__["is_watched"] = True
        return chosen

    def _arrive(self, moment: str) -> None:
        method, session = _running.get()
        place = f"{method} {moment}"
        self._arrivals.record(place, session=session)
        self._counts[session, place] += 1
        if not self._wanted.exists():
            return
        if json.loads(self._wanted.read_text()) == [session, place, self._counts[session, place]]:
            self._wanted.unlink()
            self._killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def use_scripted_model(flow: AgentSessionFlow, client: AsyncOpenAI) -> None:
    """Point a flow at its scripted model."""
    runner = flow.runner
    assert isinstance(runner, OpenAIAgentsRunner)
    run_config = dataclasses.replace(
        runner._settings.run_config,
        model_provider=OpenAIProvider(openai_client=client),
        tracing_disabled=True,
    )
    runner._settings = dataclasses.replace(runner._settings, run_config=run_config)


@asynccontextmanager
async def connected_when_used(server: MCPServerStdio) -> AsyncGenerator[None]:
    """Connect a server at its first use: most kills are of sessions that never use it."""
    wanted, done, connected = asyncio.Event(), asyncio.Event(), asyncio.Event()
    list_tools = server.list_tools

    async def list_when_connected(*args: Any, **kwargs: Any) -> Any:
        wanted.set()
        await connected.wait()
        return await list_tools(*args, **kwargs)

    async def hold() -> None:
        # A connection is opened and closed by one and the same task.
        await wanted.wait()
        try:
            async with server:
                connected.set()
                await done.wait()
        finally:
            connected.set()

    server.list_tools = list_when_connected
    holding = asyncio.create_task(hold())
    try:
        yield
    finally:
        done.set()
        if not wanted.is_set():
            holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def serve(examples: dict[str, Any]) -> None:
    """Serve until the test is over."""
    witness = Witness(Path(os.environ[FOLDER_VARIABLE]))
    witness.watch_bodies()
    witness.watch_models()
    flows: list[AgentSessionFlow] = []
    async with AsyncExitStack() as stack:
        # Copies share its connections: to read the certificates for each takes a second in all.
        client = await stack.enter_async_context(AsyncOpenAI(api_key="unused", max_retries=0))
        for name, url in json.loads(os.environ[MODELS_VARIABLE]).items():
            example = examples[name]
            use_scripted_model(example.flow, client.copy(base_url=url))
            witness.watch_steps(example.flow)
            if hasattr(example, "server"):
                await stack.enter_async_context(connected_when_used(example.server))
            flows.append(example.flow)
        app = await stack.enter_async_context(
            open_sessions(flows, server_address=os.environ[SERVER_VARIABLE], connect=False)
        )
        _write_ready_file(os.environ[READY_VARIABLE])
        await app.serve_until_signal(or_end_of_input=True)


async def warm_up() -> None:
    """Run an agent once, so that no worker has to build again what a first run builds."""
    script = load_model_script(EXAMPLES / "scripts" / "parallel_tools.json")
    async with (
        serve_model_script(script) as model,
        AsyncOpenAI(base_url=model.base_url, api_key="unused") as client,
    ):
        run_config = RunConfig(
            model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True
        )
        agent = load_example("parallel_tools").agent
        async for _ in Runner.run_streamed(agent, "warm up", run_config=run_config).stream_events():
            pass


def main() -> int:
    """Fork a worker, and another one whenever it was killed."""
    examples = {name: load_example(name) for name in json.loads(os.environ[MODELS_VARIABLE])}
    asyncio.run(warm_up())
    gc.collect()
    gc.freeze()
    while True:
        child = os.fork()
        if child == 0:
            asyncio.run(serve(examples))
            os._exit(0)
        (Path(os.environ[FOLDER_VARIABLE]) / WORKER_FILE).write_text(str(child))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            return code


if __name__ == "__main__":
    sys.exit(main())
