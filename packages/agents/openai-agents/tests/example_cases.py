"""The examples of the documentation, and what a session of each must do, killed or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        name: Its file, without the ending.
        said: What the user says, turn by turn.
        ends: How each turn ends: its answer, or the beginning of its error.
        bodies: How often each tool runs.
        answers: Approvals, by a word among the arguments.
        ends_if_unknown: How each turn ends when a write was lost in the moment it began.
    """

    name: str
    said: tuple[str, ...]
    ends: tuple[str, ...]
    bodies: Mapping[str, int] = field(default_factory=dict[str, int])
    answers: Mapping[str, bool] = field(default_factory=dict[str, bool])
    ends_if_unknown: tuple[str, ...] = ()


CASES = (
    Example(
        "hello",
        ("My chain squeaks.",),
        ("Clean it, dry it, and put one drop of oil on every link.",),
    ),
    Example(
        "conversation",
        ("I ride 28 mm tyres.", "How much air do they want?"),
        ("A good width for the road.", "Your 28 mm tyres want 6.4 bar."),
        {"tyre_pressure": 1},
    ),
    Example(
        "streaming",
        ("How many bicycles are there?",),
        ("There are 19: 12 in the north shed and 7 in the south one.",),
        {"count_bikes": 2},
    ),
    Example(
        "dynamic_instructions",
        ("When do you open?", "And on Sunday?"),
        ("Welcome! We open at nine.", "We are closed on Sundays."),
    ),
    Example(
        "lifecycle_hooks",
        ("Here is a wheel with 32 spokes.",),
        ("The wheel runs true.",),
        {"roll_wheel": 1},
    ),
    Example(
        "parallel_tools",
        ("I need a chain, a saddle and a bell.",),
        ("All three are set aside, 81.50 euros together.",),
        {"price_of": 3, "reserve": 3},
    ),
    Example(
        "handoffs",
        ("My brakes do not grip.", "And if the wheel is bent as well?"),
        ("New brakes take 1 day.", "Then it is 3 days."),
        {"repair_days": 2},
    ),
    Example(
        "handoff_filter",
        ("I am Ida, good morning.", "A poem about my bicycle, please."),
        (
            "Good morning, Ida! How is the tandem?",
            "Two wheels, two seats, one bell: you ride it very well.",
        ),
        {"customer_file": 1},
    ),
    Example(
        "agents_as_tools",
        ("Do you have a chain, and what is it?",),
        ("Yes: 4 chains are there, at 24 euros each.",),
        {"ask_stock": 1, "ask_price": 1},
    ),
    Example(
        "input_guardrail",
        ("Can you fix my car ?", "Then my bicycle, please."),
        ("InputGuardrailTripwireTriggered: ", "Gladly. What is wrong with it?"),
    ),
    Example(
        "output_guardrail",
        ("Will it last for ten years?", "For one year, at least?"),
        ("OutputGuardrailTripwireTriggered: ", "With some care it should."),
    ),
    Example(
        "tool_guardrails",
        ("Who owns bicycle 4711, and who owns my-bike?",),
        ("It is registered, the owner is not shown.",),
        {"registry": 1},
    ),
    Example(
        "human_in_the_loop",
        ("We need a bell, a motor and a golden saddle.",),
        ("Bell and motor are ordered. The golden saddle was not approved.",),
        {"order_part": 2},
        {"motor": True, "golden": False},
        ("I cannot tell whether everything is ordered. Please check.",),
    ),
    Example(
        "structured_output",
        ("My chain is worn out.",),
        ('{"parts":[{"name":"chain","euros":24.0}],"hours":0.5}',),
        {"catalogue": 1},
    ),
    Example(
        "stop_at_tool",
        ("I bring the green one.",),
        ("TICKET 12: ready on Friday",),
        {"find_bicycle": 1, "print_ticket": 1},
    ),
    Example(
        "tool_use_behavior",
        ("To the coast?", "Over the pass, then?"),
        ("You would get wet there.", "the pass: dry, go!"),
        {"weather": 2},
    ),
    Example(
        "mcp_stdio",
        ("Label the chains as winter stock.",),
        ("Four chains are labelled.",),
        {"count_parts": 1, "label_part": 1},
    ),
)
