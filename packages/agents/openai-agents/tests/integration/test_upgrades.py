"""Case 15: sessions wait for a person while the agents change, in a worker process of the release
before and one of the release after."""

from __future__ import annotations

from pathlib import Path

from openai_run import TESTS
from upgrade_worker import CHANGES, build_flows

from dex_agents import AgentSnapshot
from dex_agents.testing import AgentTestStack, InvocationLog, StartProcess, wait_for_agent_snapshot
from dex_agents_testkit.model_server import serve_model_script

SCRIPT = {
    "rules": [
        {"when": {"user_contains": ["hello"]}, "reply": {"text": "Still here."}},
        {"when": {"last_tool": "pay"}, "reply": {"text": "The bill: ${tool:pay}"}},
        {
            "when": {"user_contains": ["bill"], "last": "user"},
            "reply": {
                "tool_calls": [{"name": "pay", "arguments": {"amount": 5}, "call_id": "call-pay"}]
            },
        },
    ]
}


async def test_case_15_a_deploy_while_sessions_wait_names_what_is_missing_and_loses_no_session(
    tmp_path: Path, start: StartProcess
) -> None:
    async with serve_model_script(SCRIPT) as model:
        flows = build_flows("after", tmp_path, model.base_url)
        settings = {"UPGRADE_FOLDER": str(tmp_path), "UPGRADE_MODEL_URL": model.base_url}
        async with AgentTestStack(
            tmp_path / "stack",
            flows.values(),
            "upgrade_worker",
            worker_cwd=TESTS,
            worker_env=settings,
            start=start,
        ) as stack:

            async def ended(change: str, turn: int) -> AgentSnapshot:
                return await wait_for_agent_snapshot(
                    stack.sessions(flows[change]),
                    change,
                    lambda s: s if s.state is not None and s.state.turn_count >= turn else None,
                    description=f"turn {turn} of {change!r}",
                    timeout=90,
                )

            worker = await stack.start_worker({"UPGRADE_RELEASE": "before"})
            pending: dict[str, str] = {}
            for change, flow in flows.items():
                await stack.sessions(flow).start_session(change, "Pay my bill.")
            for change, flow in flows.items():
                waiting = await wait_for_agent_snapshot(
                    stack.sessions(flow), change, lambda s: next(iter(s.pending_interrupts), None)
                )
                pending[change] = waiting.interrupt_id
            worker.kill()
            await stack.start_worker({"UPGRADE_RELEASE": "after"})
            results: dict[str, AgentSnapshot] = {}
            for change, flow in flows.items():
                assert await stack.sessions(flow).resolve_interrupt(
                    change, pending[change], approved=True
                )
            for change in CHANGES:
                results[change] = await ended(change, 1)
            errors = {
                change: (snapshot.state and snapshot.state.last_turn_error) or ""
                for change, snapshot in results.items()
            }
            assert errors["agent renamed"].startswith("AgentMissing: ")
            assert "'Cashier'" in errors["agent renamed"]
            assert "Cashier 2" in errors["agent renamed"]
            for change in ("tool removed", "tool renamed"):
                assert errors[change].startswith("ToolMissing: ")
                assert "'pay'" in errors[change]
            for change in ("agent renamed", "tool removed", "tool renamed"):
                # The answer had its effect: the call is over, and its record says why it never ran.
                [note] = [m.text for m in results[change].messages if "was not run" in m.text]
                assert "pay" in note
                assert not results[change].pending_interrupts
            assert errors["schema changed"] == errors["framework changed"] == ""
            # The old arguments lack what the new schema wants, so the body never ran.
            assert results["schema changed"].messages[-1].text.startswith("The bill: An error")
            assert results["framework changed"].messages[-1].text == "The bill: paid 5"
            payments = InvocationLog(tmp_path / "tools.log").entries("pay")
            assert [call.details["flow"] for call in payments] == ["framework changed"]

            for change, flow in flows.items():
                before = len(model.requests)
                await stack.sessions(flow).send_user_message(change, "hello?")
                assert (await ended(change, 2)).messages[-1].text == "Still here."
                [request] = model.requests[before:]
                texts = [str(i.get("content")) for i in request.body["input"] if "content" in i]
                if errors[change]:
                    assert any("was not run" in text for text in texts), "the model reads the note"
