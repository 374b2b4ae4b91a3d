"""Live events: text as the model writes it, and tools as they are called and end.

Any process that knows the session id may read them, from the start or from where it stopped.
"""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from talk import talk

from dex_agents import AgentEventType, AgentSessionClient, ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def count_bikes(shed: str) -> int:
    """Count the bicycles in a shed."""
    return {"north": 12, "south": 7}.get(shed, 0)


agent = Agent[None](
    name="Caretaker",
    instructions="You look after two bicycle sheds, north and south. Count before you answer.",
    tools=[count_bikes],
)
flow = openai_agents_session_flow(
    agent,
    flow_type="StreamingAgent",
    tool_policies={"count_bikes": ToolPolicy(ToolEffect.READ)},
)


async def read_text(sessions: AgentSessionClient, session_id: str) -> str:
    """Read the live text of the first turn as a user interface does.

    A model call that is made again, because its worker died, streams again from its beginning under
    a higher attempt. So what the attempt before had shown is dropped.
    """
    shown: dict[str, tuple[int, str]] = {}
    token = ""
    while True:
        read = await sessions.read_agent_event(session_id, token)
        token, event = read.resume_token, read.value
        if event.type is AgentEventType.TEXT_DELTA:
            attempt, text = shown.get(event.step_execution_id, (0, ""))
            kept = text if attempt == event.attempt else ""
            shown[event.step_execution_id] = (event.attempt, kept + str(event.payload["text"]))
        elif event.type in (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED):
            return "".join(text for _, text in shown.values())


if __name__ == "__main__":
    asyncio.run(talk(flow, "How many bicycles are there?"))
