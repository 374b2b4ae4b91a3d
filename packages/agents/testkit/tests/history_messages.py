"""The messages of generated histories."""

from __future__ import annotations

import json
from typing import Any

from history_flow import TOOLS
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn


@st.composite
def turns(draw: DrawFn) -> str:
    """Draw a turn: rounds of tool calls, sometimes a handoff, then an answer or a failure."""
    usage = st.fixed_dictionaries(
        {"input_tokens": st.integers(1, 50), "output_tokens": st.integers(1, 9)}
    )
    replies: list[dict[str, Any]] = []
    calls = 0
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        tools = draw(st.lists(st.sampled_from(TOOLS), min_size=1, max_size=3))
        asked = [
            {"id": f"c{calls + n}", "name": tool, "arguments": {"n": str(n)}}
            for n, tool in enumerate(tools, 1)
        ]
        calls += len(tools)
        replies.append({"text": "Working.", "tool_calls": asked, "usage": draw(usage)})
    if draw(st.integers(0, 5)) == 0:
        replies.append({"continues": True, "usage": draw(usage)})
    if draw(st.integers(0, 7)) == 0:
        replies.append({"turn_failure": "the guardrail tripped"})
    else:
        replies.append({"message": "Done.", "usage": draw(usage)})
    return json.dumps({"replies": replies})
