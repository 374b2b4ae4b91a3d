"""Settings of all tests in this repository."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: how long an example takes says more about the machine than about the code. The same
# examples every time, so that a change is judged by what it changed; `search` looks for new ones.
settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
