"""The packed form gives back exactly what went in, and is small where text repeats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents_openai_agents._stored.packing import UnpackError, pack, unpack

TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(min_size=30, max_size=200),
    st.sampled_from(["long text " * 20, "\x00t0", "\x00kname", "\x00", "\ud800"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=6), st.dictionaries(st.text(), TEXTS, max_size=3))
def test_unpack_undoes_pack(value: dict[str, Any], known: dict[str, str]) -> None:
    assert unpack(pack(value, known), known) == value


def test_a_text_that_repeats_is_stored_once_and_a_known_one_not_at_all() -> None:
    random_text = "".join(chr(33 + (i * 7919 * (i % 97 + 1)) % 90) for i in range(100_000))
    once = len(pack({"a": random_text}, {}))
    assert len(pack({"a": [random_text] * 10}, {})) < once * 1.1
    assert len(pack({"a": [random_text] * 10}, {"output": random_text})) < 500


@pytest.mark.parametrize(
    "damage", [lambda s: s[:-8], lambda s: "x" + s, lambda s: "", lambda s: s + "!"]
)
def test_damaged_text_is_refused(damage: Any) -> None:
    with pytest.raises(UnpackError):
        unpack(damage(pack({"a": "b" * 100}, {})), {})


@pytest.mark.parametrize("known", [{}, {"output": "other"}])
def test_a_known_text_that_is_gone_or_changed_is_refused(known: dict[str, str]) -> None:
    packed = pack({"a": "text" * 100}, {"output": "text" * 100})
    with pytest.raises(UnpackError, match="output"):
        unpack(packed, known)
