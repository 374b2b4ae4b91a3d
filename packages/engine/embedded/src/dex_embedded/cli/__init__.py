"""The `dex-embedded` command."""

from dex_embedded.cli.app import main

__all__ = ["main"]
