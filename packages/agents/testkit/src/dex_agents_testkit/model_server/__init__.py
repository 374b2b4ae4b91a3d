"""A scripted model behind the OpenAI HTTP API, for tests and demonstrations without a key.

    async with serve_model_script({"turns": [{"replies": [{"text": "Hello"}]}]}) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="unused")

It serves `POST /v1/responses` and `POST /v1/chat/completions`, streamed or not, and records every
request. `python -m dex_agents_testkit.model_server` runs it as a process of its own.
"""

from dex_agents_testkit._script_fields import ScriptError
from dex_agents_testkit.model_server.conversation import Conversation, ConversationItem, ItemKind
from dex_agents_testkit.model_server.matching import NoScriptedAnswerError
from dex_agents_testkit.model_server.recording import RecordedRequest, read_recorded_requests
from dex_agents_testkit.model_server.script import (
    ModelScript,
    load_model_script,
    parse_model_script,
)
from dex_agents_testkit.model_server.serving import RunningModelServer, serve_model_script

__all__ = [
    "Conversation",
    "ConversationItem",
    "ItemKind",
    "ModelScript",
    "NoScriptedAnswerError",
    "RecordedRequest",
    "RunningModelServer",
    "ScriptError",
    "load_model_script",
    "parse_model_script",
    "read_recorded_requests",
    "serve_model_script",
]
