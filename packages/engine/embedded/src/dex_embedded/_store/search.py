"""The search language of `SearchFlows`, compiled to SQL.

A filter is comparisons joined by AND, OR, NOT and parentheses, as in
`FlowType = "Support" AND ExecutionStatus IN ("Running", "Failed")`. A run without an index key
matches no comparison on it, negated or not: NULL behaves that way in SQL too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn

from dex_embedded._kernel.errors import InvalidRequestError, UnsupportedError, quoted
from dex_embedded._kernel.values import FlowStatus, IndexType
from dex_embedded._store.protocol import FoundRun, SearchPage
from dex_embedded._store.reader import Reader
from dex_embedded._store.reading import SUMMARY_COLUMNS, read_indexed_values, summary_from

_LONGEST_QUERY: Final = 10_000
_DEEPEST_NESTING: Final = 50

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)
      | `(?P<quoted>[^`]+)`
      | (?P<word>[A-Za-z_][\w.\-]*)
      | (?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)

_STATUS_NAMES: Final = {
    "running": FlowStatus.RUNNING,
    "completed": FlowStatus.COMPLETED,
    "failed": FlowStatus.FAILED,
    "canceled": FlowStatus.CANCELED,
    "terminated": FlowStatus.TERMINATED,
    "continuedasnew": FlowStatus.CONTINUED_AS_NEW,
    "timedout": 4,  # reserved; no run of this engine ever has it
}

_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "STARTS_WITH", "TRUE", "FALSE"}
)

Literal = str | int | float | bool


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`text`, `number`, `name`, `keyword`, `sign` or `end`."""
    value: str


@dataclass(frozen=True, slots=True)
class _Field:
    """Something to compare: SQL for its value, and how a literal becomes comparable to it."""

    sql: str
    parameters: tuple[object, ...]
    convert: Callable[[Literal], object]
    is_text: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class _Condition:
    sql: str
    parameters: tuple[object, ...]


def search(
    reader: Reader,
    index_types: Mapping[str, IndexType],
    query: str,
    *,
    limit: int,
    after: str,
    include_continued: bool,
) -> SearchPage:
    """See `protocol.Store.search`."""
    condition = compile_query(query, index_types)
    parts = [f"({condition.sql})"]
    parameters: list[object] = list(condition.parameters)
    if not include_continued:
        parts.append("status <> ?")
        parameters.append(int(FlowStatus.CONTINUED_AS_NEW))
    if after:
        parts.append("(started_at, key) < (?, ?)")
        parameters.extend(_position_from(after))
    rows = reader.rows(
        f"SELECT {SUMMARY_COLUMNS} FROM run AS r WHERE {' AND '.join(parts)}"
        " ORDER BY started_at DESC, key DESC LIMIT ?",
        (*parameters, limit + 1),
    )
    found = [summary_from(row) for row in rows[:limit]]
    more = len(rows) > limit
    return SearchPage(
        runs=tuple(
            FoundRun(summary=summary, indexed=read_indexed_values(reader, summary.key))
            for summary in found
        ),
        next=f"{found[-1].started_at!r}:{found[-1].key}" if more else "",
    )


def _position_from(after: str) -> tuple[float, int]:
    started, colon, key = after.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(started), int(key)
    except ValueError:
        raise InvalidRequestError("the page token was not made by this engine") from None


def compile_query(query: str, index_types: Mapping[str, IndexType]) -> _Condition:
    """A condition over the table `run AS r`.

    Raises:
        InvalidRequestError: Syntax error or unknown field.
        UnsupportedError: A field this engine does not keep.
    """
    if not query.strip():
        return _Condition("1", ())
    if len(query) > _LONGEST_QUERY:
        raise InvalidRequestError(f"the query is longer than {_LONGEST_QUERY} characters")
    return _Parser(query, index_types).parse()


class _Parser:
    """Recursive descent; `_positive` tells whether the place is under an even number of NOTs."""

    def __init__(self, query: str, index_types: Mapping[str, IndexType]) -> None:
        self._tokens = _tokenize(query)
        self._position = 0
        self._index_types = index_types
        self._positive = True
        self._depth = 0

    def parse(self) -> _Condition:
        condition = self._either()
        if self._peek().kind != "end":
            self._fail(f"unexpected {quoted(self._peek().value)}")
        return condition

    def _either(self) -> _Condition:
        condition = self._both()
        while self._accept("keyword", "OR"):
            condition = _join(condition, "OR", self._both())
        return condition

    def _both(self) -> _Condition:
        condition = self._negation()
        while self._accept("keyword", "AND"):
            condition = _join(condition, "AND", self._negation())
        return condition

    def _negation(self) -> _Condition:
        self._depth += 1
        if self._depth > _DEEPEST_NESTING:
            self._fail(f"more than {_DEEPEST_NESTING} levels of nesting")
        try:
            if self._accept("keyword", "NOT"):
                self._positive = not self._positive
                inner = self._negation()
                self._positive = not self._positive
                return _Condition(f"NOT ({inner.sql})", inner.parameters)
            if self._accept("sign", "("):
                inner = self._either()
                self._expect("sign", ")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> _Condition:
        token = self._next()
        if token.kind != "name":
            self._fail(f"expected a field name, not {quoted(token.value)}")
        name = token.value
        if self._accept("keyword", "IS"):
            negated = self._accept("keyword", "NOT")
            self._expect("keyword", "NULL")
            field = self._field(name)
            return _Condition(f"{field.sql} IS {'NOT ' if negated else ''}NULL", field.parameters)
        if self._accept("keyword", "STARTS_WITH"):
            field = self._field(name)
            if not field.is_text:
                self._fail(f"STARTS_WITH needs a text field, and {quoted(name)} is none")
            prefix = field.convert(self._literal())
            return _Condition(
                f"substr({field.sql}, 1, length(?)) = ?", (*field.parameters, prefix, prefix)
            )
        if self._accept("keyword", "BETWEEN"):
            field = self._ordered(name)
            low = field.convert(self._literal())
            self._expect("keyword", "AND")
            high = field.convert(self._literal())
            return _Condition(f"{field.sql} BETWEEN ? AND ?", (*field.parameters, low, high))
        negated = self._accept("keyword", "NOT")
        if negated or self._peek() == _Token("keyword", "IN"):
            self._expect("keyword", "IN")
            return self._membership(name, negated=negated)
        return self._relation(name)

    def _membership(self, name: str, *, negated: bool) -> _Condition:
        self._expect("sign", "(")
        literals = [self._literal()]
        while self._accept("sign", ","):
            literals.append(self._literal())
        self._expect("sign", ")")
        positive = self._positive
        self._positive = positive and not negated
        condition = self._equals(name, literals[0])
        for literal in literals[1:]:
            condition = _join(condition, "OR", self._equals(name, literal))
        self._positive = positive
        if negated:
            return _Condition(f"NOT ({condition.sql})", condition.parameters)
        return condition

    def _relation(self, name: str) -> _Condition:
        token = self._next()
        sign = "!=" if token.value == "<>" else token.value
        if token.kind != "sign" or sign not in ("=", "!=", "<", "<=", ">", ">="):
            self._fail(f"expected a comparison after {quoted(name)}, not {quoted(token.value)}")
        if sign == "=":
            return self._equals(name, self._literal())
        if sign == "!=":
            positive, self._positive = self._positive, False
            condition = self._equals(name, self._literal())
            self._positive = positive
            return _Condition(f"NOT ({condition.sql})", condition.parameters)
        field = self._ordered(name)
        value = field.convert(self._literal())
        return _Condition(f"{field.sql} {sign} ?", (*field.parameters, value))

    def _equals(self, name: str, literal: Literal) -> _Condition:
        field = self._field(name)
        value = field.convert(literal)
        if field.is_list:
            return _Condition(
                "(SELECT ? IN (SELECT value FROM json_each(list))"
                f" FROM (SELECT {field.sql} AS list) WHERE list IS NOT NULL)",
                (value, *field.parameters),
            )
        if self._positive and name in self._index_types and name not in _BUILT_IN:
            # Lets SQLite start from the index of values. Only where a missing key and a different
            # value mean the same, hence not under a NOT.
            return _Condition(
                "r.key IN (SELECT run FROM index_entry WHERE index_key = ? AND value = ?)",
                (name, value),
            )
        return _Condition(f"{field.sql} = ?", (*field.parameters, value))

    def _ordered(self, name: str) -> _Field:
        field = self._field(name)
        if field.is_list:
            self._fail(f"{quoted(name)} is a list, which has no order")
        return field

    def _field(self, name: str) -> _Field:
        built_in = _BUILT_IN.get(name)
        if built_in is not None:
            return built_in
        if name == "ActiveStepTypes":
            raise UnsupportedError("searching by ActiveStepTypes")
        index_type = self._index_types.get(name)
        if index_type is None:
            raise InvalidRequestError(f"unknown search field {quoted(name)}")
        return _Field(
            "(SELECT value FROM index_entry WHERE run = r.key AND index_key = ?)",
            (name,),
            _CONVERSIONS[index_type],
            is_text=index_type in (IndexType.KEYWORD, IndexType.TEXT),
            is_list=index_type is IndexType.KEYWORD_ARRAY,
        )

    def _literal(self) -> Literal:
        token = self._next()
        match token.kind:
            case "text":
                return re.sub(r"\\(.)", r"\1", token.value[1:-1], flags=re.DOTALL)
            case "number":
                try:
                    return int(token.value)
                except ValueError:
                    return float(token.value)
            case "keyword" if token.value in ("TRUE", "FALSE"):
                return token.value == "TRUE"
            case _:
                self._fail(f"expected a value, not {quoted(token.value)}")

    def _peek(self) -> _Token:
        return self._tokens[self._position]

    def _next(self) -> _Token:
        token = self._tokens[self._position]
        if token.kind != "end":
            self._position += 1
        return token

    def _accept(self, kind: str, value: str) -> bool:
        if self._peek() == _Token(kind, value):
            self._position += 1
            return True
        return False

    def _expect(self, kind: str, value: str) -> None:
        if not self._accept(kind, value):
            self._fail(f"expected {value}, not {quoted(self._peek().value)}")

    def _fail(self, problem: str) -> NoReturn:
        raise InvalidRequestError(f"invalid query: {problem}")


def _join(left: _Condition, word: str, right: _Condition) -> _Condition:
    return _Condition(f"({left.sql} {word} {right.sql})", (*left.parameters, *right.parameters))


def _tokenize(query: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(query.rstrip())
    while position < end:
        match = _TOKEN.match(query, position)
        if match is None:
            raise InvalidRequestError(
                f"invalid query: unexpected {quoted(query[position:end].strip())}"
            )
        position = match.end()
        kind = match.lastgroup or ""
        value = match.group(kind)
        if kind == "word":
            is_keyword = value.upper() in _KEYWORDS
            token = _Token("keyword", value.upper()) if is_keyword else _Token("name", value)
        elif kind == "quoted":
            token = _Token("name", value)
        else:
            token = _Token(kind, value)
        tokens.append(token)
    tokens.append(_Token("end", "the end"))
    return tokens


# --- literals --------------------------------------------------------------------------------


def _as_text(literal: Literal) -> str:
    if not isinstance(literal, str):
        raise InvalidRequestError(f"invalid query: {literal} is compared to a text field")
    return literal


def _as_number(literal: Literal) -> int | float:
    if isinstance(literal, bool | str):
        raise InvalidRequestError(
            f"invalid query: {quoted(str(literal))} is compared to a number field"
        )
    if isinstance(literal, int) and not -(2**63) <= literal < 2**63:
        return float(literal)
    return literal


def _as_bool(literal: Literal) -> int:
    if not isinstance(literal, bool):
        raise InvalidRequestError(
            f"invalid query: {quoted(str(literal))} is compared to a true or false field"
        )
    return int(literal)


def _as_time(literal: Literal) -> float:
    try:
        moment = datetime.fromisoformat(_as_text(literal))
    except ValueError:
        raise InvalidRequestError(
            f"invalid query: {quoted(str(literal))} is no RFC 3339 time"
        ) from None
    if moment.tzinfo is None:
        raise InvalidRequestError(f"invalid query: time {quoted(str(literal))} has no offset")
    return moment.timestamp()


def _as_status(literal: Literal) -> int:
    status = _STATUS_NAMES.get(_as_text(literal).lower())
    if status is None:
        raise InvalidRequestError(f"invalid query: unknown status {quoted(str(literal))}")
    return int(status)


_CONVERSIONS: Final[Mapping[IndexType, Callable[[Literal], object]]] = {
    IndexType.KEYWORD: _as_text,
    IndexType.TEXT: _as_text,
    IndexType.KEYWORD_ARRAY: _as_text,
    IndexType.INT: _as_number,
    IndexType.DOUBLE: _as_number,
    IndexType.BOOL: _as_bool,
    IndexType.DATETIME: _as_time,
}

_STATUS: Final = _Field("r.status", (), _as_status)
_FLOW_ID: Final = _Field("r.flow_id", (), _as_text, is_text=True)

_BUILT_IN: Final[Mapping[str, _Field]] = {
    "FlowType": _Field("r.flow_type", (), _as_text, is_text=True),
    "ExecutionStatus": _STATUS,
    "FlowStatus": _STATUS,
    "WorkflowId": _FLOW_ID,
    "FlowId": _FLOW_ID,
    "RunId": _Field("r.run_id", (), _as_text, is_text=True),
    "StartTime": _Field("r.started_at", (), _as_time),
    "CloseTime": _Field("r.closed_at", (), _as_time),
    # No run has a parent: SubFlows are not served.
    "DexParentFlowID": _Field("NULL", (), _as_text, is_text=True),
}
