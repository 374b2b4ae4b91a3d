"""The pure centre of a session: what follows from an outcome, a record, an answer or a size.

Nothing here imports the SDK, reads a clock or does I/O. The Steps of `dex_agents.session_flow`
bring the facts and carry out what is decided here.
"""
