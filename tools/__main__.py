"""Entry point of `python3 -m tools`."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python is what this line is there for
    sys.exit("tools: Python 3.11 or newer is needed; name one, as in `make PYTHON=python3.12 sync`")

from tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
