"""Stored values survive both codecs, keep a format version, and refuse what cannot be read."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from dex import CodecRegistry, Value, WireKind
from hypothesis import given
from hypothesis import strategies as st

from dex_agents import _internal_values as internal
from dex_agents import _json_form
from dex_agents import values as v
from dex_agents._json_form import VALUE_TYPES, encoded_bytes, from_json, to_json
from dex_agents._value_base import StoredValue
from dex_agents.codecs import ValueCodec, agent_codecs, uses_agent_codecs

EXPLICIT = CodecRegistry(agent_codecs())
DERIVED = CodecRegistry()

# Any text a model may produce, lone surrogates included.
texts = st.text(st.characters(exclude_categories=()), max_size=40)
optional_texts = st.none() | texts
moments = st.datetimes(timezones=st.just(UTC)) | st.datetimes(
    timezones=st.just(timezone(timedelta(hours=5, minutes=30)))
)
counts = st.integers(0, 2**40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

usages = st.builds(v.AgentUsage, counts, counts, counts, counts, counts, counts)
messages = st.builds(
    v.AgentMessage,
    counts,
    texts,
    st.sampled_from(v.MessageRole),
    texts,
    st.builds(json.dumps, json_values),
    moments,
    texts,
    texts,
)
tool_calls = st.builds(
    v.AgentToolCall,
    texts,
    texts,
    texts,
    texts,
    st.sampled_from(v.ToolEffect),
    st.booleans(),
    counts,
    st.sampled_from(v.ToolCallStatus),
    optional_texts,
    optional_texts,
    optional_texts,
    optional_texts,
    st.none() | usages,
    is_output_cut=st.booleans(),
)
interrupts = st.builds(
    v.AgentInterrupt,
    texts,
    texts,
    texts,
    texts,
    texts,
    st.sampled_from(v.ToolEffect),
    moments,
    st.none() | moments,
)
states = st.builds(
    v.AgentState, st.sampled_from(v.AgentStatus), counts, counts, optional_texts, optional_texts
)
entries = st.builds(internal.ToolCallEntry, texts, counts, counts)
indexes = st.builds(
    internal.AgentSessionIndex,
    st.lists(counts, max_size=3).map(tuple),
    counts,
    st.lists(entries, max_size=3).map(tuple),
    counts,
    counts,
)
STRATEGIES: dict[type[StoredValue], st.SearchStrategy[Any]] = {
    v.AgentEvent: st.builds(
        v.AgentEvent,
        st.sampled_from(v.AgentEventType),
        texts,
        texts,
        counts,
        st.dictionaries(texts, json_values, max_size=3),
    ),
    v.AgentInterrupt: interrupts,
    v.AgentInterruptResolution: st.builds(
        v.AgentInterruptResolution, st.booleans(), optional_texts
    ),
    v.AgentMessage: messages,
    internal.AgentMessageSizes: st.builds(
        internal.AgentMessageSizes, st.lists(counts, max_size=3).map(tuple)
    ),
    v.AgentMessagesPage: st.builds(
        v.AgentMessagesPage,
        st.lists(messages, max_size=2).map(tuple),
        counts,
        st.booleans(),
        sizes=st.lists(counts, max_size=3).map(tuple),
    ),
    internal.AgentSessionIndex: indexes,
    v.AgentSessionStartInput: st.builds(v.AgentSessionStartInput, texts, texts),
    v.AgentSnapshot: st.builds(
        v.AgentSnapshot,
        st.none() | states,
        st.lists(messages, max_size=2).map(tuple),
        st.lists(interrupts, max_size=2).map(tuple),
        st.lists(tool_calls, max_size=2).map(tuple),
        usages,
        counts,
        index=st.none() | indexes,
    ),
    v.AgentState: states,
    v.AgentToolCall: tool_calls,
    v.AgentToolOutput: st.builds(v.AgentToolOutput, optional_texts, optional_texts),
    v.AgentUsage: usages,
    v.AgentUserMessage: st.builds(v.AgentUserMessage, texts, texts),
    internal.KnownMessageId: st.builds(internal.KnownMessageId, texts),
    v.ListAgentMessagesRequest: st.builds(v.ListAgentMessagesRequest, counts, counts),
    internal.ModelStepBudget: st.builds(internal.ModelStepBudget, counts, moments, counts, counts),
    v.PendingTurnFailure: st.builds(v.PendingTurnFailure, texts, texts),
    v.ResolveInterruptRequest: st.builds(
        v.ResolveInterruptRequest, texts, st.booleans(), optional_texts
    ),
    v.ToolCallCompleted: st.builds(v.ToolCallCompleted, texts, texts, counts, counts),
    internal.ToolCallEntry: entries,
}

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.requirement("CORE-STORE-08")
def test_every_stored_type_has_a_strategy_and_a_codec() -> None:
    assert set(STRATEGIES) == set(VALUE_TYPES)
    subclasses = {c for c in StoredValue.__subclasses__() if c.__module__.startswith("dex_agents")}
    assert subclasses == set(VALUE_TYPES)


@pytest.mark.requirement("CORE-RUNNER-18", "CORE-STORE-08")
@given(st.one_of([*STRATEGIES.values()]))
def test_a_value_survives_each_codec_and_what_one_wrote_the_other_reads(value: Any) -> None:
    explicit, derived = EXPLICIT.resolve(type(value)), DERIVED.resolve(type(value))
    by_explicit, by_derived = explicit.encode(value), derived.encode(value)
    by_explicit.data.encode()  # pyright: ignore[reportAttributeAccessIssue] - JSON text
    for codec in (explicit, derived):
        for encoded in (by_explicit, by_derived):
            assert codec.decode(encoded) == value
    hidden = [f.name for f in dataclasses.fields(value) if not f.compare]
    for name in hidden:
        assert getattr(explicit.decode(by_explicit), name) == getattr(value, name)


@pytest.mark.requirement("CORE-STORE-08")
@given(st.lists(interrupts, max_size=3))
def test_a_list_of_interrupts_survives(pending: list[v.AgentInterrupt]) -> None:
    codec = EXPLICIT.resolve(list[v.AgentInterrupt])
    assert codec.decode(codec.encode(pending)) == pending
    derived = DERIVED.resolve(list[v.AgentInterrupt])
    assert derived.decode(codec.encode(pending)) == pending


@given(st.one_of([*STRATEGIES.values()]))
def test_the_size_of_a_value_is_the_size_of_what_is_stored(value: Any) -> None:
    data = EXPLICIT.resolve(type(value)).encode(value).data
    assert isinstance(data, str)
    assert encoded_bytes(value) == len(data.encode())


@pytest.mark.requirement("CORE-STORE-10")
def test_a_long_item_is_stored_compressed_and_read_whole_by_both_codecs() -> None:
    item = json.dumps({"text": "all work and no play " * 500})
    message = v.AgentMessage(1, "turn-1", v.MessageRole.ASSISTANT, "", item, NOW)
    encoded = EXPLICIT.resolve(v.AgentMessage).encode(message)
    assert isinstance(encoded.data, str)
    assert len(encoded.data) < 1000
    assert EXPLICIT.resolve(v.AgentMessage).decode(encoded) == message
    assert DERIVED.resolve(v.AgentMessage).decode(encoded) == message


@pytest.mark.requirement("CORE-STORE-10")
def test_a_long_output_is_stored_compressed_and_one_that_looks_compressed_is_not_mistaken() -> None:
    codec, derived = EXPLICIT.resolve(v.AgentToolOutput), DERIVED.resolve(v.AgentToolOutput)
    long = v.AgentToolOutput("ha" * 100_000, '{"a": "' + "ho" * 100_000 + '"}')
    encoded = codec.encode(long)
    assert isinstance(encoded.data, str)
    assert len(encoded.data) < 5000
    assert codec.decode(encoded) == derived.decode(encoded) == long
    for tricky in ("zlib:abc", '{"zlib": "abc"}', "zlib"):
        value = v.AgentToolOutput(tricky)
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.requirement("CORE-STORE-15")
def test_text_is_stored_readable_and_half_characters_escaped() -> None:
    codec = EXPLICIT.resolve(v.AgentUserMessage)
    assert "Grüße 你好" in str(codec.encode(v.AgentUserMessage("Grüße 你好")).data)
    half = v.AgentUserMessage("half \ud83d")
    assert "\\ud83d" in str(codec.encode(half).data)
    assert codec.decode(codec.encode(half)) == half


def test_unknown_fields_are_ignored_and_absent_optional_ones_get_their_default() -> None:
    data = {"text": "hi", "mood": "good"}
    assert from_json(v.AgentUserMessage, data) == v.AgentUserMessage("hi")


@pytest.mark.requirement("CORE-STORE-09")
@pytest.mark.parametrize(
    ("kind", "data", "named"),
    [
        (v.AgentUserMessage, [], "JSON object"),
        (v.AgentUserMessage, {}, "text"),
        (v.AgentUserMessage, {"text": "hi", "format_version": 2}, "upgrade dex-agents"),
        (v.AgentUserMessage, {"text": "hi", "format_version": "x"}, "format_version"),
        (v.AgentUserMessage, {"text": "hi", "format_version": 0}, "format_version"),
        (v.AgentState, {"status": "dancing"}, "dancing"),
        (
            v.AgentMessage,
            {
                "sequence": 1,
                "turn_id": "t",
                "role": "user",
                "text": "",
                "framework_item": "zlib:broken",
                "created_at": "2026-01-01T00:00:00+00:00",
            },
            "damaged",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_and_not_replaced(
    kind: type[StoredValue], data: object, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        ValueCodec(kind).decode(Value(WireKind.JSON, json.dumps(data)))


@pytest.mark.requirement("CORE-STORE-09")
def test_a_value_of_a_newer_release_is_refused_by_a_plain_registry_too() -> None:
    newer = json.dumps({"text": "hi", "message_id": "", "format_version": 2})
    with pytest.raises(ValueError, match="upgrade"):
        DERIVED.resolve(v.AgentUserMessage).decode(Value(WireKind.JSON, newer))


@pytest.mark.requirement("CORE-STORE-09")
def test_a_value_of_an_older_format_is_brought_up_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(v.AgentUserMessage, "FORMAT", 3)
    monkeypatch.setitem(
        _json_form.UPGRADES,
        v.AgentUserMessage,
        {
            1: lambda data: {"body": data["words"]},
            2: lambda data: {"text": data["body"].upper()},
        },
    )
    assert from_json(v.AgentUserMessage, {"words": "hi"}) == v.AgentUserMessage("HI")
    read = from_json(v.AgentUserMessage, {"body": "hi", "format_version": 2})
    assert read == v.AgentUserMessage("HI")
    assert read.format_version == 3


def test_a_codec_refuses_values_of_another_type() -> None:
    with pytest.raises(TypeError, match="AgentUsage"):
        ValueCodec(v.AgentUsage).encode(v.AgentUserMessage("hi"))  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(TypeError):
        ValueCodec(v.AgentUsage).decode(Value(WireKind.STRING, "{}"))
    with pytest.raises(TypeError):
        EXPLICIT.resolve(list[v.AgentInterrupt]).encode([1])
    with pytest.raises(ValueError, match="list"):
        EXPLICIT.resolve(list[v.AgentInterrupt]).decode(Value(WireKind.JSON, "{}"))


@pytest.mark.requirement("CORE-STORE-14")
def test_the_active_codecs_can_be_told_apart() -> None:
    assert uses_agent_codecs(EXPLICIT)
    assert not uses_agent_codecs(DERIVED)


@pytest.mark.requirement("CORE-STORE-06")
def test_positional_fields_keep_their_published_order() -> None:
    order = {
        v.AgentState: "status turn_count message_count turn_id last_turn_error",
        v.AgentMessage: (
            "sequence turn_id role text framework_item created_at message_id agent_name"
        ),
        v.AgentToolCall: (
            "tool_call_id turn_id tool_name arguments effect requires_approval deferral_order "
            "status output error rejection_message framework_payload usage"
        ),
        v.AgentInterrupt: (
            "interrupt_id turn_id tool_call_id tool_name arguments effect raised_at deadline"
        ),
        v.AgentInterruptResolution: "approved rejection_message",
        v.ResolveInterruptRequest: "interrupt_id approved rejection_message",
        v.AgentUsage: (
            "model_calls input_tokens output_tokens total_tokens cached_input_tokens "
            "reasoning_tokens"
        ),
        v.AgentSnapshot: "state messages pending_interrupts tool_calls usage queued_message_count",
        v.ListAgentMessagesRequest: "after_sequence limit",
        v.AgentMessagesPage: "messages next_after_sequence has_more",
        v.AgentEvent: "type turn_id step_execution_id attempt payload",
        v.AgentUserMessage: "text message_id",
    }
    for kind, names in order.items():
        positional = [f.name for f in dataclasses.fields(kind) if not f.kw_only]
        assert positional == names.split()


@pytest.mark.requirement("CORE-STORE-07")
def test_values_cannot_be_changed() -> None:
    for kind in VALUE_TYPES:
        assert dataclasses.fields(kind)
        assert kind.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue] - set by dataclass


@given(st.lists(st.none() | usages, max_size=4))
def test_usages_add_up_field_by_field(given_usages: list[v.AgentUsage | None]) -> None:
    total = v.AgentUsage.total(given_usages)
    known = [usage for usage in given_usages if usage is not None]
    for name in ("model_calls", "input_tokens", "output_tokens", "total_tokens"):
        assert getattr(total, name) == sum(getattr(usage, name) for usage in known)


def test_to_json_is_plain_data_only() -> None:
    snapshot = v.AgentSnapshot(
        v.AgentState(v.AgentStatus.RUNNING_TOOLS),
        (v.AgentMessage(1, "t", v.MessageRole.USER, "", "{}", NOW),),
    )
    assert json.loads(json.dumps(to_json(snapshot)))["messages"][0]["role"] == "user"
