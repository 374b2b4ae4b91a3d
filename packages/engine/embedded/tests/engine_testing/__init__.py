"""Helpers of the engine's tests: engine processes, and flows whose handlers a test writes."""
