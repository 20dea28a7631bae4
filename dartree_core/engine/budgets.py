"""Which policy sizes which rounds, and what they learnt in earlier processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from dartree_core.config import DecodeConfig, Method
from dartree_core.draft.drafter import Drafter
from dartree_core.engine.budget import BudgetPolicy, TurnBudget
from dartree_core.engine.costs import (
    PassCosts,
    costs_of,
    identity,
    recalled_costs,
    remember_costs,
)
from dartree_core.models.memory import Memory
from dartree_core.models.target import Target

Kind: TypeAlias = Literal["greedy", "sampled", "coupled"]
"""How tokens are chosen and drafted: the same path score means something else in each."""


class Budgets:
    """The policies of one target and drafter, by method and kind; all share the pass costs.

    Args:
        target, drafter: The models.
        memory: Where costs and what policies learn outlive the process, under the names of
            models, device and code path they hold for.
    """

    def __init__(self, target: Target, drafter: Drafter, memory: Memory) -> None:
        self._target, self._drafter, self._memory = target, drafter, memory
        self._costs: PassCosts | None = None
        self._asked = self._sure = False
        self._policies: dict[tuple[Method, Kind], BudgetPolicy] = {}

    @property
    def costs(self) -> PassCosts:
        """Pass costs of the target, measured or checked when first asked for."""
        if self._costs is None or not self._sure:
            self._costs = costs_of(self._target, self._memory, self._costs)
            self._sure = True
        return self._costs

    def observe_plain(self, ms: float, host_ms: float) -> None:
        """A pass of plain decoding took `ms`, and the host's work of its round `host_ms`. Turns
        that draft in every round never see one, and would go by what a step cost when the machine
        was slower."""
        if self._costs is None and not self._asked:
            self._asked = True
            self._costs = recalled_costs(self._target, self._memory)
        if self._costs is not None:
            self._costs.observe(1, ms)
        for policy in self._policies.values():
            policy.timed(host_ms)

    def policy(self, method: Method, kind: Kind) -> BudgetPolicy:
        """The policy for one way of drafting, with what earlier processes learnt of it."""
        if (method, kind) not in self._policies:
            policy = BudgetPolicy(self.costs, self._drafter.spec.num_slots())
            policy.restore(self._memory.recall(self._key(method, kind)))
            self._policies[method, kind] = policy
        return self._policies[method, kind]

    def remember(self, method: Method, kind: Kind) -> None:
        """Keep what a policy, and the costs, have learnt."""
        policy = self._policies[method, kind]
        self._memory.remember(self._key(method, kind), policy.to_dict())
        remember_costs(self._target, policy.costs, self._memory)

    def _key(self, method: Method, kind: Kind) -> str:
        drafter = self._drafter
        name = (drafter.label, drafter.path, _fingerprint(drafter))
        return " | ".join(("budget", method, kind, *name, identity(self._target)))


class TurnBudgets:
    """The accounts of one turn: called with whether drafts are coupled, gives who sizes them.

    Args:
        budgets: The decoder's; asked for only when a round needs sizing.
        config: Settings of the turn.
        limit: Most tokens the turn's rounds may emit.
    """

    def __init__(self, budgets: Callable[[], Budgets], config: DecodeConfig, limit: int) -> None:
        self._budgets = budgets
        self._method: Method = config.method
        self._greedy = config.sampling.greedy
        self._limit = limit
        self._turns: dict[Kind, TurnBudget] = {}

    def __call__(self, coupled: bool) -> TurnBudget:
        """Who sizes rounds whose drafts are `coupled`, or are not."""
        kind: Kind = "greedy" if self._greedy else "coupled" if coupled else "sampled"
        if kind not in self._turns:
            policy = self._budgets().policy(self._method, kind)
            self._turns[kind] = policy.turn(self._limit)
        return self._turns[kind]

    def remember(self) -> None:
        """The turn is over: keep what was learnt in it, if it drafted."""
        for kind, turn in self._turns.items():
            if turn.drafted:
                self._budgets().remember(self._method, kind)


def _fingerprint(drafter: Drafter) -> str:
    """Tells a drafter from another of the same name, such as itself before more training."""
    total = 0.0
    for module in (drafter.backbone, drafter.head):
        for weight in module.parameters():
            total += float(weight.flatten()[:64].float().sum())
    return f"{total:.6e}"
