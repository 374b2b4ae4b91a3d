"""What a provider may do with a request, and how the turn ends then, as data.

The conditions are those that either wire knows. Chat Completions knows neither sealed reasoning nor
calls of shell, custom and apply-patch tools; those are tested apart, on the Responses wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Api = Literal["responses", "chat"]


@dataclass(frozen=True)
class Way:
    """How a model is called.

    Attributes:
        api: The wire.
        streams: Whether the provider streams; one that cannot is asked for whole responses.
    """

    api: Api
    streams: bool

    def __str__(self) -> str:
        return f"{self.api}-{'streamed' if self.streams else 'whole'}"


WAYS: Final = tuple(Way(api, streams) for api in ("responses", "chat") for streams in (True, False))


@dataclass(frozen=True)
class Answers:
    """The turn completes with this text after one request."""

    text: str


@dataclass(frozen=True)
class Fails:
    """The turn fails after one request, with this type and these words in its error."""

    error_type: str
    words: str = ""


@dataclass(frozen=True)
class TriesAgain:
    """The first request fails, the second one completes the turn.

    Attributes:
        after: Seconds that the provider asks to wait, at least.
    """

    after: float = 0.0


End = Answers | Fails | TriesAgain


@dataclass(frozen=True)
class Condition:
    """One thing that a provider does.

    Attributes:
        name: For test ids; the user message starts with it.
        reply: What the provider says, as an entry of a script.
        responses: The end on the Responses wire.
        chat: The end on the Chat Completions wire; the same by default.
        fault: What goes wrong with the first request, as an entry of a script.
        ways: Where the condition exists.
    """

    name: str
    reply: Mapping[str, Any]
    responses: End
    chat: End | None = None
    fault: Mapping[str, Any] | None = None
    ways: tuple[Way, ...] = WAYS

    def end(self, way: Way) -> End:
        """Return how the turn ends."""
        return self.chat if way.api == "chat" and self.chat is not None else self.responses


LOST_TEXT: Final = "lost after some text"
DONE: Final = {"text": "all of it is done"}
_STREAMED: Final = tuple(way for way in WAYS if way.streams)
_CUT: Final = "ModelBehaviorError"
_LIMITED: Final = "RateLimitError"


def _broken(name: str, after: float = 0.0, /, **fault: Any) -> Condition:
    return Condition(name, DONE, TriesAgain(after), fault=fault)


def _refused(name: str, error_type: str, words: str, /, **fault: Any) -> Condition:
    return Condition(name, DONE, Fails(error_type, words), fault={"times": 9, **fault})


CONDITIONS: Final = (
    Condition("all is well", DONE, Answers(DONE["text"])),
    Condition("reasoning", {"reasoning": ["Hm."], **DONE}, Answers(DONE["text"])),
    Condition("refusal", {"refusal": "I will not."}, Fails("ModelRefusalError")),
    # A response that was cut off is an error on one wire and an answer on the other, as in a plain
    # run; where there is nothing to show, both fail. What is cut off is not paid a second time.
    Condition(
        "cut off at the limit",
        {"text": "A long ans", "incomplete": "max_output_tokens"},
        Fails(_CUT, "max_output_tokens"),
        Answers("A long ans"),
    ),
    Condition(
        "cut off while it reasons",
        {"reasoning": ["Hm."], "incomplete": "max_output_tokens"},
        Fails(_CUT, "max_output_tokens"),
        Fails(_CUT, "length"),
    ),
    Condition(
        "filtered in the middle",
        {"text": "A long ans", "incomplete": "content_filter"},
        Fails(_CUT, "content_filter"),
        Answers("A long ans"),
    ),
    Condition(
        "filtered at once",
        {"incomplete": "content_filter"},
        Fails(_CUT, "content_filter"),
        Fails("ModelRefusalError"),
    ),
    _broken("no byte of an answer", hang_up=True),
    _broken("lost before the first event", drop_after=0),
    _broken("lost in the middle", drop_after=1),
    Condition(
        LOST_TEXT,
        {**DONE, "piece_characters": 2},
        TriesAgain(),
        fault={"drop_after": 6},
        ways=_STREAMED,
    ),
    Condition(
        "failed",
        DONE,
        TriesAgain(),
        fault={"fail_after": 2, "code": "server_error"},
        ways=_STREAMED,
    ),
    Condition(
        "failed as a whole",
        DONE,
        TriesAgain(),
        fault={"fail_after": 0, "code": "server_error"},
        ways=tuple(way for way in WAYS if not way.streams),
    ),
    Condition(
        "failed for good",
        DONE,
        Fails(_CUT, "invalid_prompt"),
        Fails("APIError", "not like this"),
        fault={"fail_after": 2, "code": "invalid_prompt", "message": "not like this", "times": 9},
        ways=_STREAMED,
    ),
    _refused("bad request", "BadRequestError", "no such field", status=400,
             message="no such field"),
    _refused("no credentials", "AuthenticationError", "OPENAI_API_KEY", status=401,
             message="wrong key: sk-secret"),
    _refused("forbidden", "PermissionDeniedError", "OPENAI_API_KEY", status=403,
             message="wrong key: sk-secret"),
    _refused("no such model", "NotFoundError", "(404)", status=404),
    _refused("unprocessable", "UnprocessableEntityError", "(422)", status=422),
    _refused("no money", _LIMITED, "(429)", status=429, code="insufficient_quota"),
    _broken("timeout", status=408),
    _broken("conflict", status=409),
    _broken("limited", status=429),
    _broken("limited for seconds", 2.0, status=429, retry_after=2),
    _broken("limited until a date", 2.0, status=429, retry_after_date=2),
    _broken("internal error", status=500),
    _broken("overloaded", 2.0, status=503, retry_after=2),
)  # fmt: skip
