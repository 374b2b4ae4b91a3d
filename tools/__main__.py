"""Entry point of `python3 -m tools`."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    sys.exit("tools: Python 3.11 or newer is needed; set PYTHON to one, as in `make PYTHON=python3.12`")

from tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
