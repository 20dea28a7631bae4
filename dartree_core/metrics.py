"""Statistics of a turn, or of several, from their events.

Names are vLLM's per-request ones where it has one; what only a tree has gets its own. Everything
follows from values that a trace keeps exactly, so a replayed turn has the metrics of the live
one. Memory does not grow with the number of rounds, unless the lists per step are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dartree_core.events import STAGES, Event, PrefillDone, RoundDone
from dartree_core.tree import BonusFate

_DIGITS = 4


class RunningMetrics:
    """Sums over the events of one turn; `merge` adds other turns.

    A *step* is a round that verified at least one draft token; rounds without a tree count as
    plain steps and enter no acceptance figure. *Accepted* are draft tokens that were emitted:
    those an end of the turn cut off are not counted. *Drafted* is the depth of the verified
    tree, the longest chain of draft tokens the step could have accepted, so that rates compare
    with those of linear drafts.

    Args:
        per_step: How many steps `per_step_accepted` and `per_step_drafted` may list, from the
            first on; None lists all, 0 leaves the lists out.
    """

    def __init__(self, per_step: int | None = 0) -> None:
        self._per_step = per_step
        self._accepted: list[int] = []
        self._drafted: list[int] = []
        self._steps: Counter[tuple[int, int]] = Counter()  # (drafted, accepted)
        self._plain_steps = 0
        self._tree_nodes = 0
        self._supertree_nodes = 0
        self._fates: Counter[BonusFate] = Counter()
        self._emitted = 0
        self._prefills = 0
        self._ttft = 0.0
        self._prefill = 0.0
        self._ms: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def update(self, event: Event) -> None:
        """Count an event; kinds without figures are ignored."""
        match event:
            case PrefillDone():
                self._prefills += 1
                self._emitted += 1
                self._ttft += round(event.ttft, _DIGITS)
                self._prefill += round(event.seconds, _DIGITS)
            case RoundDone():
                self._count_round(event)
            case _:
                pass

    def _count_round(self, event: RoundDone) -> None:
        self._emitted += len(event.tokens)
        for stage, ms in event.ms.items():
            self._ms[stage] = self._ms.get(stage, 0.0) + round(ms, _DIGITS)
        nodes = event.tree.num_verified
        if nodes == 0:
            self._plain_steps += 1
            return
        drafted = event.tree.height
        accepted = list(event.provenance).count("draft")
        self._steps[drafted, accepted] += 1
        self._tree_nodes += nodes
        self._supertree_nodes += len(event.tree) - 1
        if event.bonus_fate is not None:
            self._fates[event.bonus_fate] += 1
        self._list_steps([accepted], [drafted])

    def _list_steps(self, accepted: list[int], drafted: list[int]) -> None:
        self._accepted += accepted
        self._drafted += drafted
        if self._per_step is not None:
            del self._accepted[self._per_step :], self._drafted[self._per_step :]

    @classmethod
    def of_turn(cls, summary: Mapping[str, Any]) -> RunningMetrics:
        """What `summary` of one turn was made from, to merge it with others.

        Lists per step are not restored.

        Raises:
            KeyError: `summary` lacks a figure.
        """
        out = cls()
        for drafted, counts in summary["acceptance_histogram_by_draft_length"].items():
            for accepted, n in enumerate(counts):
                if n:
                    out._steps[int(drafted), accepted] = n
        out._plain_steps = summary["num_plain_steps"]
        out._tree_nodes = summary["num_tree_nodes"]
        out._supertree_nodes = summary["num_supertree_nodes"]
        out._fates.update(summary["bonus_fates"])
        out._emitted = summary["num_emitted_tokens"]
        out._prefills = int(summary["ttft_s"] is not None)
        out._ttft = summary["ttft_s"] or 0.0
        out._prefill = summary["prefill_s"]
        out._ms.update(summary["stage_ms_total"])
        return out

    def merge(self, other: RunningMetrics) -> None:
        """Add what another turn counted."""
        self._steps += other._steps
        self._plain_steps += other._plain_steps
        self._tree_nodes += other._tree_nodes
        self._supertree_nodes += other._supertree_nodes
        self._fates += other._fates
        self._emitted += other._emitted
        self._prefills += other._prefills
        self._ttft += other._ttft
        self._prefill += other._prefill
        for stage, ms in other._ms.items():
            self._ms[stage] = self._ms.get(stage, 0.0) + ms
        self._list_steps(other._accepted, other._drafted)

    def summary(self) -> dict[str, Any]:
        """The figures, JSON-ready: a trip through JSON changes nothing. Undefined ones are None.

        Returns:
            A dictionary of, in this order:

            - `mean_acceptance_length`: 1 + accepted / steps. The bonus token counts, as in the
              papers' acceptance length; vLLM's mean counts it too, its rate does not.
            - `draft_acceptance_rate`: accepted / drafted tokens, the bonus left out.
            - `acceptance_histogram`: steps by accepted tokens, index 0 on.
            - `acceptance_histogram_by_draft_length`: the same for each drafted length (as text).
            - `acceptance_survival_by_depth`: from depth 1 on, the share of all steps that
              accepted this deep (vLLM's acceptance per position).
            - `acceptance_conditional_by_depth`: of the steps that accepted the depth before and
              whose tree reached this one, the share that accepted here.
            - `num_spec_steps`, `num_plain_steps`: rounds with and without draft tokens.
            - `num_accepted_draft_tokens`, `num_draft_tokens`: sums over the steps.
            - `num_spec_tokens`: the most a step drafted.
            - `num_tree_nodes`, `num_supertree_nodes`: draft nodes verified, and built.
            - `tree_depth`: `mean` and `max` over the steps.
            - `bonus_fates`: steps by the reason why the tree lacked the bonus token.
            - `num_emitted_tokens`: the answer's tokens, the first one included.
            - `ttft_s`: seconds to the first token, the mean over merged turns; `prefill_s`,
              `decode_s`: seconds in prefill, and in the stages of all rounds.
            - `tokens_per_second`: tokens after the first over `decode_s`.
            - `tokens_per_second_with_prefill`: all tokens over `prefill_s + decode_s`.
            - `stage_ms_mean`, `stage_ms_total`: milliseconds by stage, per round and in all.
            - `per_step_accepted`, `per_step_drafted`: where asked for; `per_step_omitted` is
              the number of later steps they do not list.
        """
        steps = self._steps.total()
        rounds = steps + self._plain_steps
        accepted = sum(a * n for (_, a), n in self._steps.items())
        drafted = sum(d * n for (d, _), n in self._steps.items())
        longest = max((d for d, _ in self._steps), default=0)
        decode = sum(self._ms.values()) / 1e3
        later = self._emitted - self._prefills
        out: dict[str, Any] = {
            "mean_acceptance_length": _ratio(steps + accepted, steps),
            "draft_acceptance_rate": _ratio(accepted, drafted),
            "acceptance_histogram": self._histogram(range(longest + 1), longest),
            "acceptance_histogram_by_draft_length": {
                str(d): self._histogram((d,), d) for d in sorted({d for d, _ in self._steps})
            },
            "acceptance_survival_by_depth": [
                _ratio(self._reaching(k), steps) for k in range(1, longest + 1)
            ],
            "acceptance_conditional_by_depth": [
                _ratio(self._reaching(k), self._reaching(k - 1, k)) for k in range(1, longest + 1)
            ],
            "num_spec_steps": steps,
            "num_plain_steps": self._plain_steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": longest,
            "num_tree_nodes": self._tree_nodes,
            "num_supertree_nodes": self._supertree_nodes,
            "tree_depth": {"mean": _ratio(drafted, steps), "max": longest},
            "bonus_fates": dict(sorted(self._fates.items())),
            "num_emitted_tokens": self._emitted,
            "ttft_s": _ratio(self._ttft, self._prefills),
            "prefill_s": round(self._prefill, _DIGITS),
            "decode_s": round(decode, _DIGITS),
            "tokens_per_second": _ratio(later, decode),
            "tokens_per_second_with_prefill": _ratio(self._emitted, self._prefill + decode),
            "stage_ms_mean": {stage: _ratio(ms, rounds) for stage, ms in self._ms.items()},
            "stage_ms_total": {stage: round(ms, _DIGITS) for stage, ms in self._ms.items()},
        }
        if self._per_step != 0:
            out["per_step_accepted"] = list(self._accepted)
            out["per_step_drafted"] = list(self._drafted)
            out["per_step_omitted"] = steps - len(self._accepted)
        return out

    def _histogram(self, lengths: Iterable[int], longest: int) -> list[int]:
        counts = [0] * (longest + 1)
        for drafted in lengths:
            for accepted in range(drafted + 1):
                counts[accepted] += self._steps[drafted, accepted]
        return counts

    def _reaching(self, depth: int, drafted: int = 0) -> int:
        """Steps that accepted at least `depth` tokens and drafted at least `drafted`."""
        return sum(n for (d, a), n in self._steps.items() if a >= depth and d >= drafted)


def aggregate(turns: Iterable[RunningMetrics], per_step: int | None = 0) -> RunningMetrics:
    """The metrics of several turns together."""
    out = RunningMetrics(per_step)
    for turn in turns:
        out.merge(turn)
    return out


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, _DIGITS) if whole else None
