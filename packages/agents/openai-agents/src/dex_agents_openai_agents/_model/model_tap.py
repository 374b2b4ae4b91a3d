"""A look at the provider's stream, taken at its source.

The framework hands events on through a queue, and drops the queue when something fails. What tells
a broken connection from a refused answer would be lost with it, and so would the text a person has
not seen yet. So the model itself is wrapped, and each event is noted before the framework has it.

Models that cannot stream are asked for a whole response instead: only a streaming run can be
stopped after one call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

from agents import Model, ModelBehaviorError, ModelProvider, ModelResponse, Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from dex_agents_openai_agents import _sdk_internals as sdk


class ModelObserver(Protocol):
    """Sees the model call of one Step."""

    def call_started(self) -> None:
        """Called before the request is sent."""
        ...

    def event_received(self, event: Any) -> None:
        """Called with each event of the provider's stream."""
        ...

    def response_refused(self, error: ModelBehaviorError) -> None:
        """Called when a whole response, not a stream, says that it failed or was cut off."""
        ...


_observer: ContextVar[ModelObserver | None] = ContextVar("dex_agents_model_observer", default=None)


@contextmanager
def observing(observer: ModelObserver) -> Generator[None]:
    """Let an observer see the calls of tapped models; runs started inside inherit it."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


class TappedModel(Model):
    """A model whose streamed calls are shown to the observer of the Step, if there is one."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        # The framework asks models for optional abilities by name.
        if name == "_model":
            raise AttributeError(name)  # while being copied, before there is a model
        return getattr(self._model, name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        observer = _observer.get()
        if observer is not None:
            observer.call_started()
        response = await self._model.get_response(*args, **kwargs)
        if observer is not None:
            observer.event_received(_completed(response))
        return response

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        observer = _observer.get()
        if observer is not None:
            observer.call_started()
        async with aclosing(self._events(*args, **kwargs)) as events:
            async for event in events:
                if observer is not None:
                    observer.event_received(event)
                yield event

    async def _events(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        has_begun = False
        try:
            stream = cast(AsyncGenerator[Any], self._model.stream_response(*args, **kwargs))
            async with aclosing(stream):
                async for event in stream:
                    has_begun = True
                    yield event
            return
        except NotImplementedError:
            if has_begun:
                raise
        try:
            response = await self._model.get_response(*args, **kwargs)
        except ModelBehaviorError as error:
            if (observer := _observer.get()) is not None:
                observer.response_refused(error)
            raise
        yield _completed(response)

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await sdk.clean_up_model(self._model, owner)


class TappedProvider(ModelProvider):
    """A provider whose models are tapped."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def get_model(self, model_name: str | None) -> Model:
        return tap_model(self._provider.get_model(model_name))

    async def aclose(self) -> None:
        await self._provider.aclose()


def tap_model(model: Model) -> Model:
    """Return the model with a tap."""
    return model if isinstance(model, TappedModel) else TappedModel(model)


def _completed(response: ModelResponse) -> ResponseCompletedEvent:
    return ResponseCompletedEvent(
        type="response.completed",
        sequence_number=0,
        response=Response(
            id=response.response_id or "",
            created_at=0,
            model="",
            object="response",
            output=list(response.output),
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
            status="completed",
            usage=_response_usage(response.usage),
        ),
    )


def _response_usage(usage: Usage) -> ResponseUsage | None:
    if not usage.requests and not usage.total_tokens:
        return None
    return ResponseUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=InputTokensDetails.model_construct(
            cached_tokens=usage.input_tokens_details.cached_tokens or 0, cache_write_tokens=0
        ),
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=usage.output_tokens_details.reasoning_tokens or 0
        ),
    )
