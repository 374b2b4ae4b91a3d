"""Runs OpenAI Agents SDK agents as durable sessions."""
