"""The Steps themselves: one model call, one tool call, and what each of them is given."""
