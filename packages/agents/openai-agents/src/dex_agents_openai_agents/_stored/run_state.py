"""The state of a turn between two of its Steps, as the session stores it.

Stored is the framework's `RunState` without the conversation (the session has it), without the
run context (each Step builds its own) and, next to it, the turn's items in a form that needs no
`RunState` at all. An older framework refuses the state of a newer one outright; the items then let
the turn go on as a fresh run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from agents import Agent, RunContextWrapper, RunResultStreaming, RunState, UserError

from dex_agents import AgentToolCall, TurnFailedError
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._stored.history import InputItem
from dex_agents_openai_agents._stored.packing import UnpackError, pack, unpack

#: Form of the stored state. A reader for every released form stays here.
STATE_FORMAT: Final = 1


@dataclass(frozen=True)
class StoredRun:
    """A stopped turn.

    Attributes:
        start_agent: Agent the framework's run was started with; its graph restores the state.
        current_agent: Agent whose turn it is.
        model_turns: Model calls that count against `max_turns`, over the whole turn.
        items: Everything the turn produced so far, as input items.
        replayed: How many of them the framework's run got as input, after a replay.
        left_out: Places of the run's items that a handoff filter took out of it for good.
        state: `RunState` JSON; the conversation is cut out where it equals the stored history.
    """

    start_agent: str
    current_agent: str
    model_turns: int
    items: tuple[InputItem, ...]
    replayed: int
    state: dict[str, Any]
    left_out: tuple[int, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether the installed framework can restore the state."""
        return sdk.can_read_state(self.state)

    def unanswered_calls(self) -> list[tuple[str, InputItem]]:
        """Return the ids and items of the turn's calls that have no output yet, in order.

        A provider's question for an approval counts as a call too.
        """
        answered = {
            item.get("call_id") or item.get("approval_request_id")
            for item in self.items
            if str(item.get("type")).endswith(("_output", "_approval_response"))
        }
        calls: list[tuple[str, InputItem]] = []
        for item in self.items:
            kind = str(item.get("type"))
            call_id = item.get("id") if kind == "mcp_approval_request" else item.get("call_id")
            is_call = not kind.endswith(("_output", "_approval_response"))
            if isinstance(call_id, str) and is_call and call_id not in answered:
                calls.append((call_id, item))
        return calls

    def unanswered_call_ids(self) -> list[str]:
        """Return the ids of `unanswered_calls`."""
        return [call_id for call_id, _ in self.unanswered_calls()]

    async def restore(
        self, start: Agent[Any], history: Sequence[InputItem], context: RunContextWrapper[Any]
    ) -> RunState[Any, Agent[Any]]:
        """Return the framework's run state, ready to go on.

        Args:
            start: The agent named `start_agent`.
            history: The conversation, rendered for this Step, followed by the replayed items.
            context: Receives usage and approvals; carries the run context of this Step.

        Raises:
            UserError: The agent graph no longer fits the state.
            ModelBehaviorError: A called tool is gone.
        """
        state = dict(self.state)
        if state.get(sdk.STATE_ORIGINAL_INPUT) is None:
            state[sdk.STATE_ORIGINAL_INPUT] = list(history)
        try:
            return await RunState.from_json(start, state, context_override=context)
        except UserError as error:
            if not sdk.misses_finished_call(error):
                raise
        # A handoff filter has taken it out of the run; the framework would refuse its own state.
        state = sdk.without_finished_calls(state)
        return await RunState.from_json(start, state, context_override=context)


def snapshot(result: RunResultStreaming) -> dict[str, Any]:
    """Return the `RunState` JSON of a stopped run."""
    # The context is built anew in every Step, so it is not asked to be serialisable: the
    # serialiser covers objects, `capture` removes mappings.
    return result.to_state().to_json(context_serializer=lambda _context: {})


def capture(
    state: dict[str, Any],
    *,
    start: Agent[Any],
    history: Sequence[InputItem],
    current_agent: str,
    model_turns: int,
    items: Sequence[InputItem],
    replayed: int,
    left_out: Sequence[int] = (),
) -> StoredRun:
    """Return a stopped run in its stored form.

    Args:
        state: From `snapshot`; its entries are moved, not copied.
        start: Agent the run was started with.
        history: The input the run was started with or restored with.
        current_agent: Agent whose turn it is.
        model_turns: Model calls of the whole turn.
        items: Items of the whole turn.
        replayed: How many of them were input of this run.
        left_out: See `StoredRun`.
    """
    # Serialising normalises the input, so it is compared with an input normalised the same way.
    blank = RunState(
        context=RunContextWrapper[Any](None), original_input=list(history), starting_agent=start
    ).to_json()
    slim = dict(state)
    if slim[sdk.STATE_ORIGINAL_INPUT] == blank[sdk.STATE_ORIGINAL_INPUT]:
        slim[sdk.STATE_ORIGINAL_INPUT] = None
    for part in (slim, *sdk.nested_states(slim)):
        part[sdk.STATE_CONTEXT] = {
            **part[sdk.STATE_CONTEXT],
            sdk.STATE_CONTEXT_VALUE: blank[sdk.STATE_CONTEXT][sdk.STATE_CONTEXT_VALUE],
            sdk.STATE_CONTEXT_META: blank[sdk.STATE_CONTEXT][sdk.STATE_CONTEXT_META],
        }
    return StoredRun(
        start.name, current_agent, model_turns, tuple(items), replayed, slim, tuple(left_out)
    )


def encode_run(run: StoredRun, records: Mapping[str, AgentToolCall]) -> str:
    """Return the text to store.

    Args:
        run: The stopped run.
        records: Final tool call records of the turn; their outputs are not stored a second time.
    """
    return pack(
        {
            "v": STATE_FORMAT,
            "start_agent": run.start_agent,
            "current_agent": run.current_agent,
            "model_turns": run.model_turns,
            "items": list(run.items),
            "replayed": run.replayed,
            "state": run.state,
            "left_out": list(run.left_out),
        },
        _known_texts(records),
    )


def decode_run(text: str, records: Mapping[str, AgentToolCall]) -> StoredRun:
    """Undo `encode_run`.

    Raises:
        TurnFailedError: The text is damaged or of a newer form; no part of it is used then.
    """
    try:
        value = unpack(text, _known_texts(records))
        version = value.get("v")
        if version == STATE_FORMAT:
            return StoredRun(
                start_agent=value["start_agent"],
                current_agent=value["current_agent"],
                model_turns=value["model_turns"],
                items=tuple(value["items"]),
                replayed=value["replayed"],
                state=value["state"],
                left_out=tuple(value.get("left_out", ())),
            )
        problem = f"it has form {version!r}, this release reads form {STATE_FORMAT}"
    except UnpackError as error:
        problem = str(error)
    except (KeyError, TypeError, AttributeError):
        problem = "a part of it is missing"
    raise TurnFailedError(
        f"the stored state of this turn cannot be read: {problem}", "RunStateUnreadable"
    )


def _known_texts(records: Mapping[str, AgentToolCall]) -> dict[str, str]:
    """Texts that the records keep for the whole turn: outputs, and parts of structured ones."""
    texts: dict[str, str] = {}
    for call_id, record in records.items():
        if not record.status.is_final:
            continue
        if record.output:
            texts[f"{call_id}/output"] = record.output
        if record.framework_payload:
            for index, text in enumerate(_strings(json.loads(record.framework_payload))):
                texts[f"{call_id}/payload/{index}"] = text
    return texts


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [
            text for entry in cast(Mapping[str, object], value).values() for text in _strings(entry)
        ]
    if isinstance(value, list):
        return [text for entry in cast(list[object], value) for text in _strings(entry)]
    return []
