"""The program in the README runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dex_agents_testkit.model_server import serve_model_script

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
SCRIPT = {
    "turns": [
        {
            "replies": [
                {"tool_calls": [{"name": "search_orders", "arguments": {"customer_id": "3"}}]},
                {"tool_calls": [{"name": "create_refund", "arguments": {"order_id": "7"}}]},
                {"text": "Order 7 is refunded."},
            ]
        }
    ]
}


async def test_the_readme_program_ends_with_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, *definitions = BLOCKS
    monkeypatch.chdir(tmp_path)
    async with serve_model_script(SCRIPT) as model:
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        namespace: dict[str, Any] = {"__name__": "readme"}
        exec(compile(source, str(README), "exec"), namespace)
        await namespace["main"]()
        for block in definitions:
            exec(compile(block, str(README), "exec"), namespace)
        outputs = [
            item["output"]
            for item in model.requests[-1].body["input"]
            if item.get("type") == "function_call_output"
        ]
    assert capsys.readouterr().out == "Order 7 is refunded.\n"
    assert outputs[0] == "customer 3 has order 7"
    assert outputs[1].startswith("refunded order 7 under the key session-42/turn-1/")
