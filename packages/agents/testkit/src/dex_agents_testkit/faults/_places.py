"""The named places at which a test can strike, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dex_agents.values import ToolEffect


class Victim(StrEnum):
    """Which process is struck."""

    WORKER = "worker"
    ENGINE = "engine"
    BOTH = "both"


class Side(StrEnum):
    """Which process reaches a place."""

    WORKER = "worker"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class FaultPlace:
    """A kind of place.

    Attributes:
        name: Its name. What follows a colon, if anything, narrows it down.
        side: The process that reaches it.
        meaning: When it is reached.
        follows: The place of the worker after which it counts, for places of the engine that are
            named from the worker's point of view.
    """

    name: str
    side: Side
    meaning: str
    follows: str = ""


#: Every named place. An agent may have others of its own, through `reach_place`.
PLACES: Final[tuple[FaultPlace, ...]] = (
    FaultPlace("model.before", Side.WORKER, "a model call is about to be made"),
    FaultPlace("model.after", Side.WORKER, "the model has answered or failed; nothing is stored"),
    FaultPlace("model.result", Side.ENGINE, "the engine has the answer; not stored", "model.after"),
    FaultPlace("model.stored", Side.ENGINE, "the answer is stored; nobody knows", "model.after"),
    FaultPlace("tool.before", Side.WORKER, "a tool is about to run; the engine knows"),
    FaultPlace("tool.effect", Side.WORKER, "a tool has returned or failed; its result is not sent"),
    FaultPlace("tool.result", Side.ENGINE, "the engine has the result; not stored", "tool.effect"),
    FaultPlace("tool.stored", Side.ENGINE, "the result is stored; nobody knows", "tool.effect"),
    FaultPlace("commit.before", Side.ENGINE, "anything is about to be made durable"),
    FaultPlace("commit.after", Side.ENGINE, "it is durable; nothing is answered or sent"),
    FaultPlace("handout.before", Side.ENGINE, "an attempt is about to be marked as handed out"),
    FaultPlace("handout.after", Side.ENGINE, "that is durable; its task may not have been sent"),
    FaultPlace("send.before", Side.ENGINE, "a task is about to be sent"),
    FaultPlace("send.after", Side.ENGINE, "a task was given to the transport"),
    FaultPlace("control.before", Side.ENGINE, "a frame without a task is about to be sent"),
    FaultPlace("control.after", Side.ENGINE, "that frame was given to the transport"),
    FaultPlace("stream.before", Side.ENGINE, "an event is about to be made durable"),
    FaultPlace("stream.after", Side.ENGINE, "it is durable; nobody was told"),
    FaultPlace("disk.before", Side.ENGINE, "the data file is about to be committed"),
    FaultPlace("disk.after", Side.ENGINE, "it is committed; the engine does not know yet"),
    FaultPlace("reply.before", Side.ENGINE, "a call of a client is about to be answered"),
    FaultPlace("reply.after", Side.ENGINE, "the answer was given to the transport"),
)

_OWN_NAME: Final = re.compile(r"[\w-]+")
_MODEL_STEP: Final = "RunModel"


class UnknownPlaceError(ValueError):
    """No process reaches a place of this name."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place, as a test names it: `tool.effect:refund`.

    Attributes:
        kind: Its entry in `PLACES`; for a place of the agent's own, one made for it.
        subject: The tool of a `tool.` place, the Step or RPC of a place of the engine; empty for
            any.
    """

    kind: FaultPlace
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.subject}" if self.subject else self.kind.name

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read the form that tests use.

        Raises:
            UnknownPlaceError: It is neither a named place nor a name an agent could give one.
        """
        name, _, subject = text.partition(":")
        for kind in PLACES:
            if kind.name == name:
                if subject and name.startswith("model."):
                    raise UnknownPlaceError(f"{text!r}: there is only one kind of {name}")
                return cls(kind, subject)
        if _OWN_NAME.fullmatch(text):
            return cls(FaultPlace(text, Side.WORKER, "the agent's own"))
        known = ", ".join(kind.name for kind in PLACES)
        raise UnknownPlaceError(
            f"{text!r} is no place; known are {known}, and names of your own without a dot"
        )

    @property
    def first(self) -> str:
        """Where the strike begins: the place itself, or the one of the worker that it follows."""
        if self.kind.follows and self.subject:
            return f"{self.kind.follows}:{self.subject}"
        return self.kind.follows or str(self)

    def engine_place(self, effect: ToolEffect | None) -> str:
        """Return the engine's own name of a place that follows one of the worker.

        Args:
            effect: Effect of the tool, for `tool.` places.
        """
        when = "before" if self.kind.name.endswith(".result") else "after"
        if effect is None:
            return f"commit.{when}:{_MODEL_STEP}"
        return f"commit.{when}:{'CallTool' if effect.is_repeatable else 'CallSingleAttemptTool'}"
