"""The model call: its wrapper, its live text, and what a failure of it means."""
