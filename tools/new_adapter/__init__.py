"""Writes the package of a new adapter: everything that is the same for all of them."""
