"""Durable agent sessions, independent of the agent framework."""
