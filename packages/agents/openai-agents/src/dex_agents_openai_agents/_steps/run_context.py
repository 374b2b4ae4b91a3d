"""The run context of each Step.

A context object lives in one process, Steps run in many: a change that one Step makes cannot be
seen by the next. So every Step gets a context of its own, and changes are local to it in all cases,
not only after a restart.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from dex_agents import AgentDefinitionError
from dex_agents_openai_agents.settings import ContextFactory


class ContextSource:
    """Makes the context of each Step, from a factory or as a copy of an object.

    Raises:
        AgentDefinitionError: Both were given, or the object cannot be copied.
    """

    def __init__(self, template: object = None, factory: ContextFactory | None = None) -> None:
        if template is not None and factory is not None:
            raise AgentDefinitionError("pass either context or context_factory, not both")
        self._template = template
        self._factory = factory
        if template is not None:
            self._copy()

    async def build(self, session_id: str, turn_id: str) -> Any:
        """Return a context for one Step."""
        if self._factory is None:
            return self._copy()
        context = self._factory(session_id, turn_id)
        return await context if inspect.isawaitable(context) else context

    def _copy(self) -> object:
        try:
            return copy.deepcopy(self._template)
        except Exception as error:
            raise AgentDefinitionError(
                f"the run context of type {type(self._template).__name__} cannot be copied for "
                f"each Step: {error}. Pass context_factory=lambda session_id, turn_id: ... instead"
            ) from error
