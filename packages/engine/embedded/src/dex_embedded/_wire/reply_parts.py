"""Names the parts of a reply that make it large."""

from __future__ import annotations

from google.protobuf.message import Message


def largest_parts(message: Message) -> list[tuple[str, int]]:
    """The fields of a message, and the elements of its repeated fields, with their sizes."""
    parts: list[tuple[str, int]] = []
    for descriptor, value in message.ListFields():
        if isinstance(value, Message):
            parts.append((descriptor.name, value.ByteSize()))
        elif isinstance(value, str | bytes):
            parts.append((descriptor.name, len(value)))
        elif hasattr(value, "__len__") and not hasattr(value, "keys"):
            for index, element in enumerate(value):
                if isinstance(element, Message):
                    name = getattr(element, "key", "") or f"{descriptor.name}[{index}]"
                    parts.append((str(name), element.ByteSize()))
    return parts
