"""Keeps what the pages say true: their code runs, and the commands they name exist."""
