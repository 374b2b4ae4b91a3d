"""Commands that keep this repository: dependencies, versions, discovery, checks.

Run them as `python3 -m tools <command>`. What `sync` needs comes from the standard library alone,
because it runs before anything is installed.
"""
