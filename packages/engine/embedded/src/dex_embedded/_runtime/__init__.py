"""The live part of the engine: the only code here that starts asyncio tasks and arms timers."""
