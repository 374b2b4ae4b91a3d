"""Where a durable run may differ from a plain one, as data.

`find_differences` compares two traces and knows nothing of what is allowed. `DOCUMENTED` says what
is: each entry names the field, the reason and a plan that shows it. A difference that no entry
explains fails the test, and so does an entry whose plan does not show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from equivalence_plans import ENDING_TOOLS, AgentPlan, Plan, Said
from equivalence_runs import Trace


@dataclass(frozen=True)
class Difference:
    """One place where two traces differ.

    Attributes:
        field: What differs: `error`, `answers`, `tokens`, `output`, `order`, `item`, or a part of a
            request.
        plain: Its value in the plain run.
        durable: Its value in the session.
        call_id: The call, for outputs.
    """

    field: str
    plain: Any
    durable: Any
    call_id: str = ""


def find_differences(plain: Trace, durable: Trace) -> list[Difference]:
    """Return every place where two traces differ."""
    found: list[Difference] = []
    if plain.error != durable.error:
        found.append(Difference("error", plain.error, durable.error))
    if plain.tokens != durable.tokens:
        found.append(Difference("tokens", plain.tokens, durable.tokens))
    if plain.answers != durable.answers:
        found.append(Difference("answers", plain.answers, durable.answers))
    if plain.hooks != durable.hooks:
        mine, theirs = set(plain.hooks), set(durable.hooks)
        found.append(Difference("hooks", sorted(mine - theirs), sorted(theirs - mine)))
    plain_calls = [request["place"] for request in plain.requests]
    durable_calls = [request["place"] for request in durable.requests]
    if plain_calls != durable_calls:
        found.append(Difference("calls", plain_calls, durable_calls))
    for one, other in zip(plain.requests, durable.requests, strict=False):
        for name in one:
            if name == "input":
                found += _compare_items(one[name], other[name])
            elif one[name] != other[name]:
                found.append(Difference(name, one[name], other[name]))
    if len(plain.items) != len(durable.items):
        found.append(Difference("turns", len(plain.items), len(durable.items)))
    for one, other in zip(plain.items, durable.items, strict=False):
        found += _compare_items(one, other)
    return found


def _compare_items(plain: Sequence[Any], durable: Sequence[Any]) -> list[Difference]:
    if len(plain) != len(durable):
        return [Difference("item", list(plain), list(durable))]
    found: list[Difference] = []
    if _outputs_moved(plain, durable):
        found.append(Difference("order", [_name(i) for i in plain], [_name(i) for i in durable]))
        plain, durable = sorted(plain, key=_name), sorted(durable, key=_name)
    for one, other in zip(plain, durable, strict=True):
        if one == other:
            continue
        is_output = one.get("type") == other.get("type") == "function_call_output"
        if is_output and {**one, "output": 0} == {**other, "output": 0}:
            found.append(Difference("output", one["output"], other["output"], one["call_id"]))
        else:
            found.append(Difference("item", one, other))
    return found


def _outputs_moved(plain: Sequence[Any], durable: Sequence[Any]) -> bool:
    names = [_name(item) for item in plain]
    return names != [_name(item) for item in durable] and sorted(names) == sorted(
        _name(item) for item in durable
    )


def _name(item: Any) -> str:
    """What an item is, whatever it says."""
    kind = item.get("type") or item.get("role")
    return f"{kind} {item.get('call_id') or item.get('id') or item.get('content')}"


@dataclass(frozen=True)
class Documented:
    """An allowed difference.

    Attributes:
        name: Short name.
        fields: The fields that differ.
        reason: Why it is so, and stays so.
        explains: Whether it explains a difference in a run of a plan.
        witness: A plan in which it occurs.
    """

    name: str
    fields: tuple[str, ...]
    reason: str
    explains: Callable[[Difference, Plan], bool]
    witness: Plan


def _calls(*said: Said, **agent: Any) -> Plan:
    """A plan whose first response makes calls and whose second answers."""
    tools = tuple(dict.fromkeys(s.name for s in said if s.name != "nope"))
    return Plan(
        agents=(AgentPlan("a", tools=tools or ("echo",), **agent),),
        turns=(("question", (tuple(said), (Said("text", "done"),))),),
    )


_WITH_NESTED_HISTORY = Plan(
    agents=(AgentPlan("a", ("info",), ("b",)), AgentPlan("b", ("info",), ("a",))),
    turns=tuple(
        (
            f"question {number}",
            (
                (Said("call", "{}", f"h{number}", f"transfer_to_{name}"),),
                (Said("call", "{}", f"c{number}", "info"),),
                (Said("text", "done"),),
            ),
        )
        for number, name in enumerate(("b", "a"))
    ),
    nests_history=True,
)


def _image_not_shown(difference: Difference, _plan: Plan) -> bool:
    return len(difference.plain) == len(difference.durable) and all(
        one == other or (not other and "image_url" in one)
        for one, other in zip(difference.plain, difference.durable, strict=True)
    )


def _unknown_first(difference: Difference, plan: Plan) -> bool:
    # A plan may go on with another agent than it was made for, which lacks its tools.
    known = set[str].intersection(*({*agent.tools} for agent in plan.agents))
    unknown = {call_id for call_id, name in plan.tools_called.items() if name not in known}

    def without_unknown(names: list[str]) -> list[str]:
        errors = {f"function_call_output {call_id}" for call_id in unknown}
        return [name for name in names if name not in errors]

    return bool(unknown) and without_unknown(difference.plain) == without_unknown(
        difference.durable
    )


def _output_order_only(difference: Difference) -> bool:
    def without_outputs(names: list[str]) -> list[str]:
        return [name for name in names if not name.startswith("function_call_output")]

    return without_outputs(difference.plain) == without_outputs(difference.durable)


def _free_calls_first(difference: Difference, plan: Plan) -> bool:
    beside_an_approval = any(
        "pay" in names and len(names) > 1
        for _, responses in plan.turns
        for response in responses
        if (names := {said.name for said in response if said.kind == "call"})
    )
    return beside_an_approval and _output_order_only(difference)


def _nested(_difference: Difference, plan: Plan) -> bool:
    return plan.nests_history


def _filtered(difference: Difference, plan: Plan) -> bool:
    if not any(agent.filters_handoffs and agent.handoffs for agent in plan.agents):
        return False
    if difference.field == "hooks":
        notes = [*difference.plain, *difference.durable]
        return all(note.startswith("model starts ") for note in notes)
    # The session has all that the plain run has, in the same order, and more.
    kept = iter(difference.durable)
    return isinstance(difference.plain, list) and all(item in kept for item in difference.plain)


def _steps_last(difference: Difference, plan: Plan) -> bool:
    return "steps" in plan.tools_called.values() and _output_order_only(difference)


def _only_of_steps(difference: Difference, _plan: Plan) -> bool:
    told = [*difference.plain, *difference.durable]
    return all(note.startswith("tool ") and note.split(" ")[3] == "steps" for note in told)


def _goes_on(difference: Difference, plan: Plan) -> bool:
    called = {*plan.tools_called.values()}
    # Whatever a plain run still does, the session does too.
    more = difference.field not in ("calls", "turns") or difference.durable > difference.plain
    return not called.isdisjoint(ENDING_TOOLS) and more


DOCUMENTED: tuple[Documented, ...] = (
    Documented(
        "an image as the answer",
        ("answers",),
        "the text of a message shows no image data; the image is in the item of its tool",
        _image_not_shown,
        _calls(Said("call", "{}", "c1", "image"), stops_on_tool=True),
    ),
    Documented(
        "an unknown tool beside a known one",
        ("order",),
        "the error of the unknown tool is known before the known one has run as a Step",
        _unknown_first,
        _calls(Said("call", "{}", "c1", "nope"), Said("call", '{"x":"one"}', "c2", "echo")),
    ),
    Documented(
        "a call that waits for a person beside one that does not",
        ("order",),
        "all results of a response come back together, in the order of the calls; the framework "
        "runs the free calls before it asks and puts their results first",
        _free_calls_first,
        _calls(Said("call", '{"amount":5}', "c1", "pay"), Said("call", "{}", "c2", "info")),
    ),
    Documented(
        "the result of an agent in Steps beside another call",
        ("order",),
        "its nested run begins when the other calls of the response have their results",
        _steps_last,
        _calls(Said("call", '{"input":"one"}', "c1", "steps"), Said("call", "{}", "c2", "info")),
    ),
    Documented(
        "hooks of an agent in Steps",
        ("hooks",),
        "its call is no tool body that begins and ends in one process; hooks are told of the "
        "nested run itself",
        _only_of_steps,
        _calls(Said("call", '{"input":"one"}', "c1", "steps")),
    ),
    Documented(
        "the conversation before a handoff as a summary",
        ("item", "order", "output", "hooks"),
        "the summary is for the agent that takes over; the session keeps the conversation, and the "
        "next turn begins with that. Its text is written as a part of a message",
        _nested,
        _WITH_NESTED_HISTORY,
    ),
    Documented(
        "what a handoff filter took out of earlier turns",
        ("item", "hooks"),
        "the filter is for the agent that takes over; the session keeps the conversation, and the "
        "next turn begins with that",
        _filtered,
        Plan(
            agents=(
                AgentPlan("a", ("info",), ("b",), filters_handoffs=True),
                AgentPlan("b", ("info",), ("a",)),
            ),
            turns=(
                ("question", ((Said("call", "{}", "c1", "info"),), (Said("text", "done"),))),
                (
                    "to another",
                    ((Said("call", "{}", "h1", "transfer_to_b"),), (Said("text", "done"),)),
                ),
                ("more", ((Said("text", "done again"),),)),
            ),
        ),
    ),
    Documented(
        "a tool or a guardrail of a tool that raises",
        ("error", "hooks", "calls", "turns", "tokens", "answers"),
        "the model is told and the turn goes on, where a plain run ends with the exception",
        _goes_on,
        _calls(Said("call", "{}", "c1", "raises")),
    ),
)


def explanation(difference: Difference, plan: Plan) -> Documented | None:
    """Return the entry that explains a difference, if there is one."""
    return next(
        (
            entry
            for entry in DOCUMENTED
            if difference.field in entry.fields and entry.explains(difference, plan)
        ),
        None,
    )


def describe(difference: Difference) -> str:
    """Return a difference as a person reads it."""
    plain, durable = (json.dumps(v)[:400] for v in (difference.plain, difference.durable))
    return f"{difference.field} {difference.call_id}\n  plain:   {plain}\n  durable: {durable}"
