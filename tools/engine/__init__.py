"""Finds, fetches, starts and stops the engine that a test run uses."""
