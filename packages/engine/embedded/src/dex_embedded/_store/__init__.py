"""Durable state: the only code that imports `sqlite3`. See `protocol` for the contract."""
