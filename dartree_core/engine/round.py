"""One round of speculation: draft, build, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from dartree_core.config import CHAINS, DecodeConfig, TreeConfig
from dartree_core.draft.builders import BUILDERS, Steps
from dartree_core.draft.drafter import BlockDraft
from dartree_core.draft.graft import GRAFTED, Grafter
from dartree_core.draft.growing import grow
from dartree_core.draft.opinion import Opinion
from dartree_core.draft.packing import hosted
from dartree_core.draft.supertree import Supertree
from dartree_core.engine.answer import Answer
from dartree_core.engine.budget import RoundPlan, TurnBudget
from dartree_core.engine.coupling import Coupling
from dartree_core.engine.report import Targets, bonus_fate, describe_tree, read_targets
from dartree_core.engine.sampling import Chooser
from dartree_core.engine.session import Session
from dartree_core.engine.telling import Teller
from dartree_core.engine.verify import Verdict, VerifyPlan, walk
from dartree_core.events import (
    STAGES,
    Event,
    Provenance,
    RoundDone,
    Stage,
    TreePruned,
    TreeVerified,
)
from dartree_core.glances import Follow


class Cancelled(Exception):  # noqa: N818
    """The turn was cancelled; raised between two events, caught by the decoder."""


class Laps:
    """Host milliseconds per stage; time between an event and the next pull is nobody's.

    Args:
        owed: Milliseconds that the round before took once its figures were made; they count here.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)
    """Seconds; a benchmark may count CPU time instead."""

    def __init__(self, owed: float = 0.0) -> None:
        self.ms: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self.ms["commit"] = owed
        self._since = self.clock()

    def resume(self) -> None:
        """Start counting again after an event was consumed."""
        self._since = self.clock()

    def lap(self, stage: Stage) -> None:
        """Book the time since the last call on `stage`."""
        now = self.clock()
        self.ms[stage] += (now - self._since) * 1e3
        self._since = now

    def since(self) -> float:
        """Milliseconds since the last lap."""
        return (self.clock() - self._since) * 1e3

    def rounded(self) -> dict[Stage, float]:
        """Milliseconds with the 4 decimals a trace keeps, so that live equals replay."""
        return {stage: round(ms, 4) for stage, ms in self.ms.items()}


class Round:
    """Runs the rounds of one turn.

    The root of a round is the last emitted token: it has no keys or values in the cache yet and
    is row 0 of the pass that verifies the tree.

    Args:
        session: Models and their caches.
        config: Settings of the turn.
        answer: Emits tokens and says when the turn is over.
        chooser: The target's choices.
        turn: For events.
        policy: Who sizes rounds under budget `auto`, for coupled drafts or others; asked for
            only then.
        coupling: What is known about drafting with the target's noise.
        grafter: What is known about copying from the text so far.
    """

    def __init__(
        self,
        session: Session,
        config: DecodeConfig,
        answer: Answer,
        chooser: Chooser,
        turn: int,
        policy: Callable[[bool], TurnBudget],
        coupling: Coupling,
        grafter: Grafter,
    ) -> None:
        self.target, self.drafter = session.target, session.drafter
        self.session = session
        self.config = config
        self.drafting = config.method != "ar"
        self.tree: TreeConfig = config.tree
        self.answer = answer
        self.chooser = chooser
        self.turn = turn
        self.round = 0
        self.expected: float | None = None
        self.allowed = 0
        self._follow = Follow.NO
        self._telling = 0.0
        self._owed = 0.0
        self._policy = policy
        self._coupling = coupling
        self._grafter = grafter

    @property
    def coupled(self) -> bool:
        """True when drafts are made with the target's own noise."""
        return self.tree.coupled and not self.config.sampling.greedy

    @property
    def grafting(self) -> bool:
        """True when trees also hold what followed the same tokens earlier in the text."""
        return self.tree.graft and self.config.method in GRAFTED

    @property
    def policy(self) -> TurnBudget | None:
        """Who sizes the rounds, or None when the budget is a number or nothing is drafted."""
        auto = self.drafting and self.tree.budget == "auto"
        return self._policy(self.coupled) if auto else None

    @property
    def opens_with_a_draft(self) -> bool:
        """True when the first round is going to draft, as far as can be told before it: reading
        the prompt for it is work of the prefill."""
        # Beside the prefill's token and a round's bonus there must be room for one to draft.
        if not self.drafting or self.answer.room < 3:
            return False
        policy = self.policy
        return policy is None or policy.plan().draft

    @property
    def _teller(self) -> Teller:
        return Teller(self.turn, self.round)

    def run(self) -> Generator[Event, None, RoundDone]:
        """One round: yields stage events if asked for, returns the round's result."""
        self._pass_through()
        self.tree = self.session.take_retuned() or self.tree
        told = self.config.stages and self.drafting
        self._follow = self.session.watcher.follow() if told else Follow.NO
        followed, full = self._follow is not Follow.NO, self.config.detail == "full"
        laps = Laps(self._owed)
        self._owed = self._telling = 0.0
        start = self.session.cache.length
        root = torch.tensor(self.answer.token_ids[-1:])

        policy = self.policy
        outlook = policy.plan() if policy else RoundPlan()
        tree = yield from self._draft(root, start, outlook, laps)
        plan = VerifyPlan.of(tree, start)
        laps.lap("tree_setup")

        taps = self.drafter.taps if self.drafter and self.drafting else ()
        out = self.target.forward(
            plan.token,
            self.session.cache,
            positions=plan.position,
            visible=plan.visible,
            taps=taps,
        )
        argmax = None if out.choice is None else self.target.fetch(out.choice)
        verdict = walk(plan, out.logits, self.chooser, argmax=argmax, every_row=followed)
        laps.lap("verify")
        targets = read_targets(plan, out.logits) if followed or full else None
        laps.lap("commit")
        if followed:
            node, choice = tree.kept.tolist(), verdict.choice
            assert targets is not None
            yield TreeVerified(self.turn, self.round, node, choice, target_logp=targets[0])
            if self._follow is Follow.GLANCE:
                self.session.watcher.told(self._telling + laps.since() / 1e3)
            self._pass_through()
            laps.resume()

        rows = self.target.upload(verdict.accepted)
        self.session.commit([*root.tolist(), *verdict.tokens], rows, out.features)
        emitted = self.answer.emit([*verdict.tokens, verdict.bonus])
        self.chooser.extend(emitted)
        # What was verified behind the end of the turn is no part of the conversation.
        self.session.crop(start + max(1, len(emitted)))
        note = "" if tree.num_nodes else outlook.note
        if self.coupled and tree.num_nodes:
            self._coupling.learn([*root.tolist(), *verdict.tokens, verdict.bonus])
        if self.grafting:
            self._grafter.learn(self.session.lookup, emitted)
        done = self._describe(
            tree, plan, verdict, emitted, start, targets if full else None, laps, note
        )
        if policy is not None:
            own = None if tree.confidence is None else tree.estimates.tolist()
            policy.learn(done, drafted=tree.num_nodes > 0, estimates=own)
            self._owed = laps.since()
        self.round += 1
        return done

    def _draft(
        self, root: Tensor, start: int, outlook: RoundPlan, laps: Laps
    ) -> Generator[Event, None, Supertree]:
        """Draft a block and grow a tree on it, or a bare root where no tree can pay."""
        self.expected = None
        self.allowed = self.tree.limit if self.drafting else 0
        if self.drafter is None or self.session.draft_cache is None or not self.drafting:
            return Supertree.root_only(root)
        if self.grafting:
            self._read_text(root)
        if not outlook.draft and not (outlook.affordable and self._promising()):
            self.allowed = 0
            return Supertree.root_only(root)
        # Never deeper than the turn can still emit beside the bonus token, or than the target
        # can address.
        reach = min(self.answer.room - 1, self.target.max_positions - start - 1)
        if reach < 1:
            return Supertree.root_only(root)
        settings = outlook.adjust(self.tree, self.drafter)
        block = self.session.draft(root, settings.block_size)
        if self.coupled:
            block = self._coupling.apply(
                block, self.drafter.head, self.config, self.chooser.noise, start
            )
        laps.lap("draft")
        depth = min(reach, block.num_slots)
        if self._follow is Follow.STEPS:
            build, at = BUILDERS[self.config.method], root.to(block.hidden.device)
            steps = build(block, self.drafter.head, at, self.target.embed, settings, depth)
            tree = hosted((yield from self._narrate(block, steps, laps)))
        else:
            tree = grow(
                self.drafter,
                self.config.method,
                block,
                root,
                self.session.draft_cache,
                settings,
                depth,
                self._enough(outlook),
            )
        if self.grafting:
            tree = yield from self._graft(tree, block, reach, laps)
        policy = self.policy
        if policy is not None:
            self.allowed, self.expected = policy.size(tree.best_path_logps(self.tree.limit))
            tree.prune_on_host(self.allowed)
        elif self.config.method in CHAINS:
            self.allowed = block.num_slots  # as long as its block, whatever a tree may have
        laps.lap("tree_build")
        if self._follow is Follow.GLANCE:
            yield self._teller.drafted(block)
            self._pass_through()
            yield from self._tell_levels(tree, block)
        if self._follow is not Follow.NO:
            yield TreePruned(self.turn, self.round, tree.kept.tolist())
            self._pass_through()
            self._telling = laps.since() / 1e3
            laps.resume()
        return tree

    def _enough(self, outlook: RoundPlan) -> int | None:
        """Nodes that a tree nobody looks at may be grown for, or None to grow all of it: full
        detail is about what was pruned, and so are stages."""
        if self.config.detail == "full" or self._follow is not Follow.NO:
            return None
        return self.tree.limit if outlook.most is None else outlook.most

    def _read_text(self, root: Tensor) -> None:
        """Have the index hold the context and the root; rounds keep it up to date."""
        index, context = self.session.lookup, self.session.ids
        if self.round == 0 or len(index) != len(context) + 1:
            index.sync([*context, *root.tolist()])

    def _promising(self) -> bool:
        return self.grafting and self._grafter.promising(self.session.lookup)

    def _graft(
        self, tree: Supertree, block: BlockDraft, reach: int, laps: Laps
    ) -> Generator[Event, None, Supertree]:
        """Join what followed the same tokens earlier; levels that changed are told once more."""
        assert self.drafter is not None
        drafter = self.drafter
        method, embed = self.config.method, self.target.embed
        opinion = Opinion(tree, block, drafter.head, embed, method, drafter.growth)
        grafted = self._grafter.graft(
            tree, self.session.lookup, opinion, limit=self.tree.limit, reach=reach
        )
        laps.lap("tree_build")
        if self._follow is Follow.STEPS and grafted is not tree:
            yield from self._tell_levels(grafted, block)
            laps.resume()
        return grafted

    def _narrate(
        self, block: BlockDraft, steps: Steps, laps: Laps
    ) -> Generator[Event, None, Supertree]:
        """Grow a tree depth by depth, saying so; the next depth waits for the reader."""
        yield self._teller.drafted(block)
        tree: Supertree | None = None
        while tree is None:
            self._pass_through()
            laps.resume()
            try:
                describe = next(steps)
            except StopIteration as stop:
                tree = stop.value
            else:
                laps.lap("tree_build")
                yield self._teller.expanded(describe())
        return tree

    def _tell_levels(self, tree: Supertree, block: BlockDraft) -> Iterator[Event]:
        """A whole tree's levels, one after another."""
        for level in self._teller.levels(self.config.method, tree, block.base_logits.shape[1]):
            yield level
            self._pass_through()

    def _describe(
        self,
        tree: Supertree,
        plan: VerifyPlan,
        verdict: Verdict,
        emitted: list[int],
        start: int,
        targets: Targets | None,
        laps: Laps,
        note: str,
    ) -> RoundDone:
        described, accepted = describe_tree(tree, plan, verdict, targets)
        drafted = len(verdict.tokens)
        provenance: list[Provenance] = [
            "draft" if i < drafted else "bonus" for i in range(len(emitted))
        ]
        has_bonus = len(emitted) > drafted
        delta, span = self.answer.text.delta()
        fate = bonus_fate(tree, described, accepted[-1], verdict.bonus) if has_bonus else None
        laps.lap("commit")
        return RoundDone(
            turn=self.turn,
            round=self.round,
            position=start,
            tree=described,
            accepted=accepted,
            tokens=emitted,
            provenance=provenance,
            bonus=verdict.bonus if has_bonus else None,
            bonus_fate=fate,
            text_delta=delta,
            span=span,
            ms=laps.rounded(),
            kv_length=self.session.cache.length,
            budget=self.allowed,
            expected=self.expected,
            note=note,
        )

    def _pass_through(self) -> None:
        if self.session.cancelled:
            raise Cancelled
