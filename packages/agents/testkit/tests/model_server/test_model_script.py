from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents_testkit.model_server import (
    Conversation,
    ConversationItem,
    ItemKind,
    NoScriptedAnswerError,
    ScriptError,
    load_model_script,
    parse_model_script,
)
from dex_agents_testkit.model_server.calls import (
    ReplyCustomCall,
    ReplyPatchCall,
    ReplyShellCall,
    ReplyToolCall,
)
from dex_agents_testkit.model_server.conversation import (
    RequestError,
    read_chat_request,
    read_responses_request,
)
from dex_agents_testkit.model_server.faults import StatusFault
from dex_agents_testkit.model_server.matching import find_answer

USER, ASSISTANT = ItemKind.USER, ItemKind.ASSISTANT
CALL, OUTPUT = ItemKind.TOOL_CALL, ItemKind.TOOL_OUTPUT


def talk(*items: ConversationItem, **more: Any) -> Conversation:
    return Conversation("m", more.pop("instructions", ""), items, **more)


def said(text: str) -> ConversationItem:
    return ConversationItem(USER, text)


def called(name: str, call_id: str = "c1", arguments: str = "{}") -> ConversationItem:
    return ConversationItem(CALL, arguments, name, call_id)


def returned(name: str, text: str, call_id: str = "c1") -> ConversationItem:
    return ConversationItem(OUTPUT, text, name, call_id)


def answered(text: str) -> ConversationItem:
    return ConversationItem(ASSISTANT, text)


def first_call(script: dict[str, Any], conversation: Conversation) -> Any:
    return find_answer(parse_model_script(script), conversation).reply.tool_calls[0]


def test_a_reply_is_counted_once_however_many_calls_it_made() -> None:
    conversation = talk(
        said("hi"),
        ConversationItem(ItemKind.REASONING, "hm"),
        called("a", "c1"),
        called("b", "c2"),
        returned("a", "1", "c1"),
        returned("b", "2", "c2"),
    )

    assert (conversation.turn, conversation.reply_number) == (1, 2)
    assert [item.tool_name for item in conversation.latest_tool_outputs] == ["a", "b"]


def test_the_reply_number_starts_again_with_each_user_message() -> None:
    conversation = talk(said("hi"), called("a"), returned("a", "1"), answered("ok"), said("more"))

    assert (conversation.turn, conversation.reply_number) == (2, 1)


def test_both_apis_read_the_same_conversation() -> None:
    responses = read_responses_request(
        {
            "model": "m",
            "instructions": "be kind",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c1", "name": "ping", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "pong"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "done"}],
                },
            ],
            "tools": [{"type": "function", "name": "ping"}],
        }
    )
    chat = read_chat_request(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "ping", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "pong"},
                {"role": "assistant", "content": "done"},
            ],
            "tools": [{"type": "function", "function": {"name": "ping"}}],
        }
    )

    assert responses == chat
    assert responses.fingerprint() == chat.fingerprint()


def test_the_first_rule_that_applies_answers() -> None:
    script = parse_model_script(
        {
            "rules": [
                {"name": "sorry", "when": {"user_contains": "refund"}, "reply": {"text": "no"}},
                {"name": "else", "reply": {"text": "yes"}},
            ]
        }
    )

    assert find_answer(script, talk(said("A REFUND please"))).rule.name == "sorry"
    assert find_answer(script, talk(said("hello"))).rule.name == "else"


@pytest.mark.parametrize(
    ("when", "fits", "fits_not"),
    [
        ({"turn": 2}, talk(said("a"), answered("b"), said("c")), talk(said("a"))),
        ({"reply": 2}, talk(said("a"), called("t"), returned("t", "1")), talk(said("a"))),
        ({"said_before": "blue"}, talk(said("Blue"), said("x")), talk(said("blue"))),
        ({"last": "user"}, talk(said("a")), talk(said("a"), called("t"), returned("t", "1"))),
        (
            {"last_tool": "t"},
            talk(said("a"), called("t"), returned("t", "1")),
            talk(said("a"), called("u"), returned("u", "1")),
        ),
        (
            {"tool_output_contains": "late"},
            talk(said("a"), called("t"), returned("t", "is LATE")),
            talk(said("a"), called("t"), returned("t", "is here")),
        ),
        (
            {"instructions_contain": "triage"},
            talk(said("a"), instructions="You triage"),
            talk(said("triage")),
        ),
        (
            {"offers_tool": "t"},
            talk(said("a"), offered_tools=("t",)),
            talk(said("a"), offered_tools=("u",)),
        ),
        ({"called": "t"}, talk(said("a"), called("t")), talk(called("t"), said("a"))),
        ({"not_called": "t"}, talk(called("t"), said("a")), talk(said("a"), called("t"))),
        ({"user_matches": r"order (\d+)"}, talk(said("Order 7")), talk(said("order x"))),
        ({"user_contains": ["x", "y"]}, talk(said("why")), talk(said("no"))),
        ({"model": "m"}, talk(said("a")), Conversation("n", "", (said("a"),))),
    ],
)
def test_a_condition_decides_whether_its_rule_applies(
    when: dict[str, Any], fits: Conversation, fits_not: Conversation
) -> None:
    script = parse_model_script({"rules": [{"when": when, "reply": {"text": "yes"}}]})

    assert find_answer(script, fits).reply.text == "yes"
    with pytest.raises(NoScriptedAnswerError):
        find_answer(script, fits_not)


def test_placeholders_are_filled_from_the_conversation() -> None:
    script = parse_model_script(
        {
            "rules": [
                {
                    "when": {"user_matches": r"order (?P<order>\d+)"},
                    "reply": {
                        "text": "${user:1} / ${match:order} / ${tool:look.total} / $$5",
                        "tool_calls": [{"name": "pay", "arguments": {"why": "${user}"}}],
                    },
                }
            ]
        }
    )
    conversation = talk(
        said("hello"), called("look"), returned("look", '{"total": 12}'), said('order 7 is "bad"')
    )

    reply = find_answer(script, conversation).reply

    assert reply.text == "hello / 7 / 12 / $5"
    [call] = reply.tool_calls
    assert isinstance(call, ReplyToolCall)
    assert json.loads(call.arguments) == {"why": 'order 7 is "bad"'}


@given(st.text())
def test_any_user_text_keeps_filled_arguments_valid_json(text: str) -> None:
    script = {"rules": [{"reply": {"tool_calls": [{"name": "t", "arguments": {"q": "${user}"}}]}}]}

    assert json.loads(first_call(script, talk(said(text))).arguments) == {"q": text}


def test_a_placeholder_without_a_value_says_which_rule_asked() -> None:
    script = parse_model_script(
        {"rules": [{"name": "sum up", "reply": {"text": "${tool:look.total}"}}]}
    )

    with pytest.raises(NoScriptedAnswerError, match=r"'sum up'.*\$\{tool:look.total\}.*no output"):
        find_answer(script, talk(said("hi")))


def test_call_ids_are_the_same_for_the_same_conversation_and_differ_otherwise() -> None:
    script = parse_model_script({"rules": [{"reply": {"tool_calls": [{"name": "t"}] * 2}}]})

    first = find_answer(script, talk(said("hi"))).reply.tool_calls
    again = find_answer(script, talk(said("hi"))).reply.tool_calls
    other = find_answer(script, talk(said("ho"))).reply.tool_calls

    assert first == again
    assert len({call.call_id for call in first + other}) == 4


def test_turns_answer_by_position() -> None:
    script = parse_model_script(
        {
            "turns": [
                {"replies": [{"tool_calls": [{"name": "t"}]}, {"text": "one"}]},
                {"user_contains": "again", "replies": [{"text": "two"}]},
            ]
        }
    )
    first = (said("hi"), called("t"), returned("t", "1"))

    assert find_answer(script, talk(said("hi"))).reply.tool_calls
    assert find_answer(script, talk(*first)).reply.text == "one"
    second = talk(*first, answered("one"), said("again"))
    assert find_answer(script, second).reply.text == "two"
    with pytest.raises(NoScriptedAnswerError, match="reply 1 of turn 2"):
        find_answer(script, talk(*first, answered("one"), said("something else")))


def test_a_handoff_is_the_call_the_agents_sdk_expects() -> None:
    script = {"rules": [{"reply": {"tool_calls": [{"handoff": "Refund desk"}]}}]}

    assert first_call(script, talk(said("x"))).name == "transfer_to_refund_desk"


@pytest.mark.parametrize(
    ("call", "filled"),
    [
        (
            {"type": "custom_tool_call", "name": "look", "input": "find ${user}"},
            ReplyCustomCall("look", 'find "7"', "c"),
        ),
        (
            {"type": "shell_call", "commands": ["ls", "cat ${user}"], "timeout_ms": 900},
            ReplyShellCall(("ls", 'cat "7"'), 900, None, "c"),
        ),
        (
            {
                "type": "apply_patch_call",
                "operation": {"type": "update_file", "path": "a", "diff": "+${user}"},
            },
            ReplyPatchCall("update_file", "a", '+"7"', "c"),
        ),
        (
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "${user}"}},
            ReplyPatchCall("delete_file", '"7"', None, "c"),
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_every_kind_of_call_is_filled_from_the_conversation(
    call: dict[str, Any], filled: object
) -> None:
    script = {"rules": [{"reply": {"tool_calls": [{**call, "call_id": "c"}]}}]}

    assert first_call(script, talk(said('"7"'))) == filled


def test_outputs_of_every_kind_of_tool_belong_to_their_calls() -> None:
    patch = {"type": "delete_file", "path": "a"}
    command = {"stdout": "one\n", "stderr": "two", "outcome": {"type": "exit", "exit_code": 0}}
    conversation = read_responses_request(
        {
            "model": "m",
            "input": [
                {"role": "user", "content": "go"},
                {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls", "id"]}},
                {"type": "custom_tool_call", "call_id": "k", "name": "look", "input": "x"},
                {"type": "apply_patch_call", "call_id": "p", "operation": patch},
                {"type": "shell_call_output", "call_id": "s", "output": [command]},
                {"type": "custom_tool_call_output", "call_id": "k", "output": "found"},
                {"type": "apply_patch_call_output", "call_id": "p", "output": "gone"},
            ],
        }
    )

    assert conversation.reply_number == 2
    assert [item.text for item in conversation.items[1:4]] == ["ls\nid", "x", json.dumps(patch)]
    for name, output in {"shell": "one\ntwo", "look": "found", "apply_patch": "gone"}.items():
        assert conversation.tool_output(name) == output


def chat_request(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def responses_request(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), **more}


CHAT_CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("read", "body", "problem", "status"),
    [
        (read_chat_request, chat_request(CHAT_CALL), "no output for the tool call 'c'", 400),
        (
            read_chat_request,
            chat_request({"role": "tool", "tool_call_id": "c", "content": "1"}, CHAT_CALL),
            "no tool call for the output 'c'",
            400,
        ),
        (
            read_responses_request,
            responses_request({"type": "shell_call", "call_id": "c", "action": {}}),
            "no output for the tool call 'c'",
            400,
        ),
        (
            read_responses_request,
            responses_request({"type": "function_call_output", "call_id": "c", "output": "1"}),
            "no tool call for the output 'c'",
            400,
        ),
        (
            read_responses_request,
            responses_request({"type": "reasoning", "id": "rs_1", "summary": []}, store=False),
            "no item 'rs_1'",
            404,
        ),
    ],
)
def test_a_conversation_that_a_provider_refuses_is_refused(
    read: Callable[[dict[str, Any]], Conversation],
    body: dict[str, Any],
    problem: str,
    status: int,
) -> None:
    with pytest.raises(RequestError, match=problem) as refused:
        read(body)

    assert refused.value.status == status


@pytest.mark.parametrize(
    ("reasoning", "store"),
    [({"id": "rs_1"}, True), ({"id": "rs_1", "encrypted_content": "x"}, False), ({}, False)],
)
def test_reasoning_is_read_where_it_was_kept_or_comes_along(
    reasoning: dict[str, Any], store: bool
) -> None:
    item = {"type": "reasoning", "summary": [], **reasoning}

    assert len(read_responses_request(responses_request(item, store=store)).items) == 1


def test_faults_strike_the_first_tries_in_order() -> None:
    script = parse_model_script(
        {
            "rules": [
                {
                    "reply": {"text": "ok"},
                    "faults": [{"status": 500, "times": 2}, {"status": 429, "retry_after": 1}],
                }
            ]
        }
    )
    faults = [script.rules[0].fault_for_try(number) for number in range(1, 5)]

    statuses = [fault.status for fault in faults if isinstance(fault, StatusFault)]
    assert statuses == [500, 500, 429]
    assert faults[3] is None


def with_reply(**reply: Any) -> dict[str, Any]:
    return {"rules": [{"reply": reply}]}


def with_call(**call: Any) -> dict[str, Any]:
    return with_reply(tool_calls=[call])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({}, "neither rules nor turns"),
        ({"rules": [{"reply": {"text": 3}}]}, r"script.rules\[0\].reply.text: expected text"),
        ({"rules": [{"reply": {"txt": "a"}}]}, r"unknown key 'txt'"),
        ({"rules": [{"reply": {}}]}, "needs text, a refusal or tool calls"),
        ({"rules": [{}]}, "'reply' is missing"),
        ({"rules": [{"when": {"last": "me"}, "reply": {"text": "a"}}]}, "expected one of user"),
        ({"rules": [{"when": {"user_matches": "("}, "reply": {"text": "a"}}]}, "not a regular"),
        ({"rules": [{"reply": {"text": "${nope:x}"}}]}, "known placeholders"),
        ({"rules": [{"reply": {"text": "${user:0}"}}]}, "number of a user message"),
        ({"rules": [{"reply": {"text": "ab", "pieces": ["a"]}}]}, "exactly the text"),
        ({"rules": [{"reply": {"text": "a"}, "faults": [{"status": 200}]}]}, "at least 400"),
        ({"rules": [{"reply": {"text": "a"}, "faults": [{}]}]}, "a fault has status"),
        ({"rules": [{"reply": {"text": "a"}, "faults": [{"hang_up": False}]}]}, "expected true"),
        (
            {
                "rules": [
                    {
                        "reply": {"text": "a"},
                        "faults": [{"status": 429, "retry_after": 1, "retry_after_date": 1}],
                    }
                ]
            },
            "seconds or a date",
        ),
        (with_reply(incomplete="tired"), "expected one of max_output_tokens"),
        (with_call(type="telepathy"), "expected one of function_call"),
        (with_call(type="shell_call", commands=[]), "at least one command"),
        (with_call(type="custom_tool_call", name="x"), "'input' is missing"),
        (with_call(type="apply_patch_call", operation={"type": "move"}), "one of create_file"),
        (
            with_call(
                type="apply_patch_call", operation={"type": "delete_file", "path": "a", "diff": ""}
            ),
            "without a diff",
        ),
        (with_call(type="shell_call", commands="${nope:x}"), "known placeholders"),
        ({"turns": [{"replies": []}]}, "at least one reply"),
        ({"format": 2, "rules": [{"reply": {"text": "a"}}]}, "reads format 1, found 2"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_place(
    script: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScriptError, match=message):
        parse_model_script(script)


def test_a_script_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")

    with pytest.raises(ScriptError, match=r"missing\.json: cannot be read"):
        load_model_script(tmp_path / "missing.json")
    with pytest.raises(ScriptError, match=r"broken\.json: is not JSON"):
        load_model_script(broken)
