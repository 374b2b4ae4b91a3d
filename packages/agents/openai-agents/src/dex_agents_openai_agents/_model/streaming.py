"""Live text of a model call, from the framework's stream to the session's events.

The writer of the session collects what comes within a short time into one event.
"""

from __future__ import annotations

from typing import Any, Final

from dex_agents import AgentEventWriter

_TEXT_EVENTS: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING_EVENTS: Final = frozenset(
    {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
)


class DeltaForwarder:
    """Passes text and reasoning on as they arrive.

    Args:
        events: Writer of the Step.
    """

    def __init__(self, events: AgentEventWriter) -> None:
        self._events = events
        self._has_text = False

    def forward(self, event: Any) -> None:
        """Pass one event of the provider's stream on, if it carries text."""
        kind = getattr(event, "type", None)
        if kind in _TEXT_EVENTS:
            self._has_text = True
            self._events.write_text_delta(event.delta)
        elif kind in _REASONING_EVENTS:
            self._events.write_reasoning_delta(event.delta)

    def finish(self, text: str) -> None:
        """Pass the whole answer on if the model did not stream it.

        Args:
            text: What the model answered in this call; empty for none.
        """
        if not self._has_text and text:
            self._events.write_text_delta(text)
