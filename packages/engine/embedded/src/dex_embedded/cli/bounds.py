"""Bounds of the engine as they are written on the command line: `NAME=NUMBER`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from dex_embedded._runtime.bounds import DEFAULT_BOUNDS, Bounds


def bounds_of(given: Sequence[str]) -> Bounds:
    """Returns the bounds with these numbers in place of the defaults.

    Args:
        given: Each `NAME=NUMBER`, with a field of `Bounds`; a number may have `_` between digits.

    Raises:
        ValueError: One has another form, an unknown name, a number that is not whole or not
            positive, or stands twice.
    """
    numbers: dict[str, int] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in _defaults():
            known = ", ".join(f"{name}={default}" for name, default in _defaults().items())
            raise ValueError(f"{text!r} names no bound; the bounds and their defaults: {known}")
        if name in numbers:
            raise ValueError(f"{name} is given twice")
        try:
            numbers[name] = int(number)
        except ValueError:
            raise ValueError(f"{text!r} needs a whole number, as {name}=1000") from None
    return Bounds(**numbers)


def _defaults() -> dict[str, int]:
    return {field.name: getattr(DEFAULT_BOUNDS, field.name) for field in fields(Bounds)}
