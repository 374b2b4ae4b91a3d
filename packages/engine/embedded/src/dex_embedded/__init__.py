"""An embedded engine for durable Flows that speaks the Dex gRPC protocol.

async with open_engine("data") as engine:
    client = AsyncClient(registry, cache, ClientOptions(server_address=engine.address))
"""

from dex_embedded._open import NotLoopbackError, OpenEngine, open_engine
from dex_embedded._runtime.bounds import Bounds
from dex_embedded._store.errors import (
    StoreDamagedError,
    StoreForeignError,
    StoreInUseError,
    StoreUnusableError,
    StoreVersionError,
)
from dex_embedded._wire.token_file import TokenFileError

__all__ = [
    "Bounds",
    "NotLoopbackError",
    "OpenEngine",
    "StoreDamagedError",
    "StoreForeignError",
    "StoreInUseError",
    "StoreUnusableError",
    "StoreVersionError",
    "TokenFileError",
    "open_engine",
]
