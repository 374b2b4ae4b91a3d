"""The agents of a runner, their gated copies, and policies against their tools."""
