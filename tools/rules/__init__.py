"""Rules of this repository, each a function that returns what breaks it."""
