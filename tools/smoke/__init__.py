"""Builds every package, installs each alone outside the repository, and uses it."""
