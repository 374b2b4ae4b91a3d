"""Failures of the store, sorted by who must react. Nothing was written when one is raised."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Base of every failure of the store."""


class StoreUnusableError(StoreError):
    """The data file cannot be opened or written: permissions, a missing folder, a full disk.

    Attributes:
        path: The data file.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"cannot use data file {path}: {problem}")
        self.path = path


class StoreInUseError(StoreUnusableError):
    """Another engine holds the data file."""


class StoreForeignError(StoreUnusableError):
    """The file is not a database of this engine."""


class StoreDamagedError(StoreUnusableError):
    """The file is a database of this engine, but damaged."""


class StoreVersionError(StoreUnusableError):
    """The file was written by a newer engine.

    Attributes:
        found: Format version of the file.
        supported: Newest version this engine reads.
    """

    def __init__(self, path: Path, found: int, supported: int) -> None:
        super().__init__(
            path,
            f"it has format version {found}, this engine reads up to version {supported};"
            " use the newer engine that wrote it",
        )
        self.found = found
        self.supported = supported


class StoreFailedError(StoreError):
    """A write failed while the engine ran; memory is ahead of the disk, so the engine must stop."""


class StreamCapacityError(StoreError):
    """A stream message alone is larger than the capacity of its stream."""


class IndexTypeConflictError(StoreError):
    """An index key is known with another type."""

    def __init__(self, index_key: str, known: str, asked: str) -> None:
        super().__init__(f"index key {index_key!r} has type {known}, not {asked}")
        self.index_key = index_key
