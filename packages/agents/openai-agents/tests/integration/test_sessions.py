"""Sessions of a real agent graph on a real engine, through the framework's real model class."""

from __future__ import annotations

from pathlib import Path

from openai_run import (
    DONE,
    FIND,
    NOTE_AND_REFUND,
    SESSION,
    TO_BILLING,
    worker_in_this_process,
)
from stepped_session import assert_every_call_has_one_output


async def test_a_turn_over_tools_a_handoff_and_an_approval(tmp_path: Path) -> None:
    turns = (
        {"replies": [FIND, TO_BILLING, NOTE_AND_REFUND, DONE]},
        {"replies": [{"text": "You are welcome."}]},
    )
    async with worker_in_this_process(tmp_path, *turns) as run:
        await run.start("Refund my order. I am customer 3.")
        await run.answer(approved=True)
        snapshot = await run.turns_ended(1)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None
        assert snapshot.messages[-1].text == "All done."
        assert snapshot.messages[-1].agent_name == "Billing"
        assert snapshot.usage.model_calls == 4
        steps = [entry.step_type for entry in await run.history()]
        assert steps.count("RunModel") == 4, "one Step per model call, handoff included"
        assert steps.count("CallTool") == 2
        assert steps.count("CallSingleAttemptTool") == 1
        keys = [call.details["key"] for call in run.tools.entries()]
        assert all(str(key).startswith(f"{SESSION}/turn-1/") for key in keys)
        assert run.tools.count() == 3

        await run.send("Thanks!")
        await run.turns_ended(2)
        last = run.model.requests[-1].body
        assert last["instructions"] == "Billing", "the agent that ended the turn goes on"
        assert_every_call_has_one_output(last["input"])
        users = [item["content"] for item in last["input"] if item.get("role") == "user"]
        assert users == ["Refund my order. I am customer 3.", "Thanks!"]
        assert len(run.model.requests) == 5
        assert await run.live_text("turn-1") == "One moment.All done."


async def test_case_12_a_refused_key_costs_one_request_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    refused = {"text": "never", "faults": [{"status": 401, "message": "bad key", "times": 9}]}
    turns = ({"replies": [refused]}, {"replies": [DONE]})
    async with worker_in_this_process(tmp_path, *turns) as run:
        await run.start("Hello?")
        snapshot = await run.turns_ended(1)
        assert snapshot.state is not None
        assert (snapshot.state.last_turn_error or "").startswith("AuthenticationError: ")
        assert len(run.model.requests) == 1
        await run.send("And now?")
        assert (await run.turns_ended(2)).messages[-1].text == "All done."


async def test_case_12_an_overloaded_provider_is_asked_again_after_its_delay(
    tmp_path: Path,
) -> None:
    busy = {**DONE, "faults": [{"status": 429, "message": "busy", "retry_after": 1}]}
    async with worker_in_this_process(tmp_path, {"replies": [busy]}) as run:
        await run.start("Hello?")
        assert (await run.turns_ended(1)).messages[-1].text == "All done."
        first, second = run.model.requests
        assert second.received_at - first.received_at >= 1


async def test_a_missing_key_fails_the_turn_with_words_and_one_attempt(tmp_path: Path) -> None:
    async with worker_in_this_process(tmp_path, {"replies": [DONE]}, keyless=True) as run:
        await run.start("Hello?")
        snapshot = await run.turns_ended(1)
        assert snapshot.state is not None
        assert (snapshot.state.last_turn_error or "").startswith("ProviderCredentialsMissing: ")
        attempts = [e.final_attempt for e in await run.history() if e.step_type == "RunModel"]
        assert attempts == [1]
        assert not run.model.requests
