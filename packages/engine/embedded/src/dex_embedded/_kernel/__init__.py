"""The pure centre of the engine: what follows from an input to a flow run.

No asyncio, no sockets, no files, no clock, no randomness, no protobuf.

- `values`: options, conditions, results, failures;  `state`: `FlowRun` and its parts
- `inputs`: what can happen;  `transition`: what follows;  `events`: history
- `start.plan_start`, `start.start_run`, `decide.decide`, `snapshot.take_snapshot`: the doors
"""
