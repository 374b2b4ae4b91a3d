"""What a session keeps between Steps: items, run states, call ids and tool results."""
