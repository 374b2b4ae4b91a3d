"""Plans of the equivalence tests: an agent graph, what its model says, and what the user writes.

A plan is plain data. The same plan is run as a plain run and as a durable session.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

#: Tools a plan may use; see `equivalence_agents.make_tool`.
PLAIN_TOOLS: tuple[str, ...] = ("echo", "add", "info", "image", "typed", "inner", "politely")
FAILING_TOOLS: tuple[str, ...] = ("fails", "fails_politely")
GUARDED_TOOLS: tuple[str, ...] = ("checked", "hushed")
#: Tools of the server that agents with `has_server` use.
SERVER_TOOLS: tuple[str, ...] = ("stock", "label", "shelf")
#: Agents used as tools, whose own model calls a tool; the second one in Steps of its own.
NESTED_TOOLS: tuple[str, ...] = ("deep", "steps")
#: What ends a plain run and not a session: a tool and a guardrail that raise.
ENDING_TOOLS: tuple[str, ...] = ("raises", "barred")
#: How a failing model fails.
MODEL_ERRORS: tuple[str, ...] = ("refused", "unreachable", "broken", "own")
FEATURES = (
    "handoff",
    "approval",
    "parallel",
    "guardrail",
    "failing",
    "structured",
    "second_turn",
    "kill_model",
    "kill_tool",
    "reasoning",
    "stop_on_tool",
    "unknown_tool",
    "bad_arguments",
    "limit",
    "mcp",
    "nested",
    "behavior",
    "tool_choice",
    "filters",
    "model_error",
    "no_handler",
    "other_outputs",
    "sometimes",
)

Trip = Literal["", "input", "output"]


@dataclass(frozen=True)
class AgentPlan:
    """One agent."""

    name: str
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    is_structured: bool = False
    has_guardrails: bool = False
    stops_on_tool: bool = False
    stops_at: str = ""
    decides: bool = False
    has_server: bool = False
    requires_tools: bool = False
    filters_handoffs: bool = False


@dataclass(frozen=True)
class Said:
    """One output of a response; `call` is one of a tool or a handoff."""

    kind: Literal["text", "reasoning", "call", "refusal", "search"]
    value: str
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """One equivalence run.

    Attributes:
        agents: The graph; the first agent begins.
        turns: What the user writes, and the responses to it.
        max_turns: Limit of model calls per turn.
        error_for_unknown: Whether an unknown tool gets an error instead of failing the run.
        rejected: Call ids that the person rejects.
        kills: `model <turn>.<call>` and `tool <call id>`: where the process is killed once.
        model_error: Turn and call that fail, and how.
        handles_limit: Whether the application answers in place of a run at its limit.
        filters_input: Whether the application edits what the model is sent.
        nests_history: Whether an agent gets the conversation before a handoff as a summary.
    """

    agents: tuple[AgentPlan, ...]
    turns: tuple[tuple[str, tuple[tuple[Said, ...], ...]], ...]
    max_turns: int = 10
    error_for_unknown: bool = True
    rejected: frozenset[str] = frozenset()
    kills: frozenset[str] = frozenset()
    model_error: tuple[int, int, str] | None = None
    handles_limit: bool = False
    filters_input: bool = False
    nests_history: bool = False

    @property
    def calls(self) -> list[Said]:
        """Every call of the model, handoffs included."""
        return [
            said
            for _, responses in self.turns
            for response in responses
            for said in response
            if said.kind == "call"
        ]

    @property
    def tools_called(self) -> dict[str, str]:
        """Tool names by call id."""
        return {said.call_id: said.name for said in self.calls}


@dataclass
class _Builder:
    rng: random.Random
    features: frozenset[str]
    agents: list[AgentPlan] = field(default_factory=list[AgentPlan])
    calls: int = 0
    kills: set[str] = field(default_factory=set[str])
    rejected: set[str] = field(default_factory=set[str])

    def build(self) -> Plan:
        self._make_agents()
        turns: list[tuple[str, tuple[tuple[Said, ...], ...]]] = []
        current = self.agents[0]
        for number in range(self.rng.choice((2, 2, 3)) if "second_turn" in self.features else 1):
            user = "stop here" if self._trips("input") else f"question {number}"
            responses, current = self._turn(number, current)
            turns.append((user, responses))
        plan = Plan(
            agents=tuple(self.agents),
            turns=tuple(turns),
            max_turns=self.rng.choice((1, 2)) if "limit" in self.features else 10,
            error_for_unknown=self.rng.random() < 0.8,
            rejected=frozenset(self.rejected),
            model_error=self._model_error(turns),
            handles_limit="limit" in self.features and self.rng.random() < 0.5,
            filters_input="filters" in self.features and self.rng.random() < 0.5,
            nests_history="filters" in self.features and self.rng.random() < 0.2,
        )
        return replace(plan, kills=frozenset(self._kills(plan)))

    def _model_error(self, turns: Sequence[tuple[str, Any]]) -> tuple[int, int, str] | None:
        if "model_error" not in self.features:
            return None
        turn = self.rng.randrange(len(turns))
        return turn, self.rng.randrange(len(turns[turn][1])), self.rng.choice(MODEL_ERRORS)

    def _trips(self, _kind: str) -> bool:
        return "guardrail" in self.features and self.rng.random() < 0.15

    def _make_agents(self) -> None:
        names = ["a", "b", "c"] if "handoff" in self.features else ["a"]
        for name in names:
            tools: list[str] = self.rng.sample(PLAIN_TOOLS, self.rng.randint(1, 3))
            if "failing" in self.features:
                tools.append(self.rng.choice(FAILING_TOOLS))
            if "guardrail" in self.features:
                tools.append(self.rng.choice(GUARDED_TOOLS))
            if "approval" in self.features:
                tools.append("pay")
            if "nested" in self.features:
                # An agent in Steps of its own stands in one place only.
                in_steps = name == "a" and self.rng.random() < 0.15
                tools.append("steps" if in_steps else "deep")
            if "no_handler" in self.features and self.rng.random() < 0.5:
                tools.append(self.rng.choice(ENDING_TOOLS))
            if "sometimes" in self.features:
                tools.append("sometimes")
            decides = "behavior" in self.features and self.rng.random() < 0.4
            self.agents.append(
                AgentPlan(
                    name=name,
                    tools=tuple(tools),
                    handoffs=tuple(other for other in names if other != name),
                    is_structured="structured" in self.features,
                    has_guardrails="guardrail" in self.features,
                    stops_on_tool="stop_on_tool" in self.features and self.rng.random() < 0.4,
                    stops_at=self.rng.choice(tools) if "behavior" in self.features else "",
                    decides=decides,
                    has_server="mcp" in self.features,
                    requires_tools="tool_choice" in self.features,
                    filters_handoffs="filters" in self.features,
                )
            )

    def _turn(
        self, number: int, current: AgentPlan
    ) -> tuple[tuple[tuple[Said, ...], ...], AgentPlan]:
        responses: list[tuple[Said, ...]] = []
        wanted = [f for f in _WITH_TOOLS if f in self.features]
        rounds = max(self.rng.randint(0, 3), 1 if self.features & {"parallel", "handoff"} else 0)
        for _ in range(max(rounds, len(wanted))):
            said: list[Said] = list(self._reasoning())
            target = None
            if "handoff" in self.features and self.rng.random() < 0.5:
                target = self.rng.choice(current.handoffs)
            else:
                said += self._tool_calls(current, wanted.pop() if wanted else None)
            if target is not None:
                if self.rng.random() < 0.3:
                    said += self._tool_calls(current, None)
                said.append(self._call(f"transfer_to_{target}", "{}"))
            responses.append(tuple(said))
            if current.stops_on_tool and target is None:
                return tuple(responses), current
            if target is not None:
                current = next(agent for agent in self.agents if agent.name == target)
        is_refused = "other_outputs" in self.features and self.rng.random() < 0.2
        answer = Said("refusal" if is_refused else "text", self._answer(number, current))
        responses.append((*self._reasoning(), answer))
        return tuple(responses), current

    def _tool_calls(self, agent: AgentPlan, wanted: str | None) -> list[Said]:
        tools = [*agent.tools, *(SERVER_TOOLS if agent.has_server else ())]
        first = {
            "failing": [t for t in tools if t in FAILING_TOOLS],
            "guardrail": [t for t in tools if t in GUARDED_TOOLS],
            "approval": ["pay"],
            "nested": [t for t in tools if t in NESTED_TOOLS],
            "mcp": list(SERVER_TOOLS),
            None: [t for t in tools if t in PLAIN_TOOLS],
        }[wanted]
        names = [self.rng.choice(first)]
        if "parallel" in self.features:
            # Calls that ask a person come alone, but for a few: beside others, they differ.
            alone = [t for t in tools if (t == "pay") == (names[0] == "pay")]
            # So does a nested run in Steps of its own.
            alone = [t for t in alone if t != "steps"] or alone
            beside = tools if self.rng.random() < 0.03 else alone
            names += self.rng.choices(beside, k=self.rng.randint(1, 3))
        calls = [self._call(name, self._arguments(name)) for name in names]
        if "unknown_tool" in self.features and self.rng.random() < 0.3:
            calls.insert(self.rng.randint(0, len(calls)), self._call("nope", "{}"))
        for call in calls:
            if call.name == "pay" and self.rng.random() < 0.4:
                self.rejected.add(call.call_id)
        return calls

    def _call(self, name: str, arguments: str) -> Said:
        self.calls += 1
        return Said("call", arguments, f"call_{self.calls}", name)

    def _arguments(self, name: str) -> str:
        if "bad_arguments" in self.features and self.rng.random() < 0.3:
            return self.rng.choice(("", "{", "[]", '{"x": {}}'))
        if name == "add":
            return '{"a":1,"b":2}'
        if name in ("echo", "checked", "hushed", "inner", *NESTED_TOOLS, *SERVER_TOOLS):
            key = "input" if name in ("inner", *NESTED_TOOLS) else "x"
            value = self.rng.choices(("one", "bad", "secret"), weights=(82, 2, 16))[0]
            return f'{{"{key}":"{value}"}}'
        if name == "pay":
            return '{"amount":5}'
        return "{}"

    def _reasoning(self) -> list[Said]:
        said: list[Said] = []
        if "reasoning" in self.features:
            self.calls += 1
            said.append(Said("reasoning", f"thought {self.calls}", f"rs_{self.calls}"))
        if "other_outputs" in self.features and self.rng.random() < 0.4:
            self.calls += 1
            said.append(Said("search", f"what is {self.calls}", f"ws_{self.calls}"))
        if "other_outputs" in self.features and self.rng.random() < 0.3:
            said.append(Said("text", "one moment"))
        return said

    def _answer(self, number: int, agent: AgentPlan) -> str:
        if agent.is_structured:
            return "not json" if self.rng.random() < 0.15 else f'{{"value":{number}}}'
        return "never say this" if self._trips("output") else f"answer {number}"

    def _kills(self, plan: Plan) -> list[str]:
        places: list[str] = []
        if "kill_model" in self.features:
            turn = self.rng.randrange(len(plan.turns))
            places.append(f"model {turn}.{self.rng.randrange(len(plan.turns[turn][1]))}")
        if "kill_tool" in self.features:
            tools = [c.call_id for c in plan.calls if not c.name.startswith(("transfer", "nope"))]
            chosen = [*tools[:1], *self.rng.sample(tools, min(1, len(tools)))]
            places += [f"tool {call_id}" for call_id in chosen]
        return places


def build_plan(seed: int, features: frozenset[str]) -> Plan:
    """Return the plan of a seed, with these features where they fit."""
    return _Builder(random.Random(seed), features).build()


#: Features with a tool that each turn calls.
_WITH_TOOLS = ("failing", "guardrail", "approval", "nested", "mcp")

#: Share of the plans that have a feature. Those that lead to documented differences are rarer, so
#: that most runs must be equal in everything.
_SHARES = {
    **dict.fromkeys(FEATURES, 0.36),
    "failing": 0.44,
    "kill_model": 0.7,
    "kill_tool": 0.6,
    "second_turn": 0.5,
    "limit": 0.08,
    "nested": 0.28,
    "filters": 0.28,
    "model_error": 0.08,
    "no_handler": 0.08,
}
#: Features that only plans with a failing tool have, so that they are rarer.
_ONLY_WITH_FAILING = {"unknown_tool"}
_PLANS_PER_CYCLE = 25


def _feature_sets() -> list[frozenset[str]]:
    """One set of features for each plan of a cycle; each feature has its share exactly."""
    rng = random.Random(7)
    sets: list[set[str]] = [set() for _ in range(_PLANS_PER_CYCLE)]
    for feature in FEATURES:
        chosen = rng.sample(sets, round(_SHARES[feature] * _PLANS_PER_CYCLE))
        for features in chosen:
            features.add(feature)
    return [
        frozenset(f if "failing" in f else f - _ONLY_WITH_FAILING) for f in map(frozenset, sets)
    ]


_FEATURE_SETS = _feature_sets()


def plan_number(number: int, seed: int) -> Plan:
    """Return one of the plans of a seed; the mix of features repeats with each cycle."""
    return build_plan(seed + number, _FEATURE_SETS[number % _PLANS_PER_CYCLE])
