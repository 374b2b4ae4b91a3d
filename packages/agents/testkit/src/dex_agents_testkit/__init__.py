"""Tools for testing durable agent sessions and the adapters that run them."""
