"""The training loop: from counters to counters, one optimiser step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dartree_core.errors import ConfigError
from dartree_core.parallel.world import World
from dartree_core.train.blocks import draw_anchors, make_blocks
from dartree_core.train.features import FeatureSource
from dartree_core.train.losses import BlockLoss, block_loss, head_share
from dartree_core.train.measure import Accuracy, measure
from dartree_core.train.model import Tables, TrainableDrafter
from dartree_core.train.optim import AveragedWeights, learning_rate, make_optimiser
from dartree_core.train.parallel import sum_gradients
from dartree_core.train.precision import autocast
from dartree_core.train.recipe import Recipe
from dartree_core.train.state import Counters, load_state, save_state
from dartree_core.train.stream import VisitOrder


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimiser step did.

    Attributes:
        step: Steps made, this one included.
        blocks: Blocks seen since the run began.
        new_blocks: Blocks of this step.
        loss: Objective, averaged over the step's sequences.
        base, corrected, feature: Its terms.
        counts: `[3][K]` slots scored, base right, corrected right.
        lr: Learning rate.
        share: Weight of the corrected term.
        grad_norm: Before clipping.
        seconds: Duration.
        elapsed: Seconds of training since the run began.
    """

    step: int
    blocks: int
    new_blocks: int
    loss: float
    base: float
    corrected: float
    feature: float
    counts: tuple[tuple[float, ...], ...]
    lr: float
    share: float
    grad_norm: float
    seconds: float
    elapsed: float


class Trainer:
    """One run, resumable at every step.

    Args:
        recipe: Settings.
        model, tables, source: What is trained, and on what.
        state_file: Where the state lives; an existing one is gone on with.
        world: This process among others.
        dtype: Of matrix products.
        identity: What the run depends on, stored with the state.
        held_out: Features to measure on, or None.
        record: Called in every process after every step.
        export: Called by the leading process with the averaged weights in place.

    Attributes:
        counters: How far the run is.

    Raises:
        CheckpointError: The state is damaged or of other shapes.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: TrainableDrafter,
        tables: Tables,
        source: FeatureSource,
        *,
        state_file: Path,
        world: World,
        dtype: torch.dtype,
        identity: dict[str, str],
        held_out: FeatureSource | None,
        record: Callable[[StepReport], None],
        export: Callable[[Counters], None],
    ) -> None:
        self.recipe, self.model, self.tables, self.source = recipe, model, tables, source
        self.world, self.dtype = world, dtype
        self.counters = Counters()
        self._state_file, self._identity = state_file, identity
        self._held_out = held_out
        self._record, self._export = record, export
        self._device = source.target.device
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimiser = make_optimiser(model, recipe.optimiser)
        self._average = AveragedWeights(self._parameters, recipe.optimiser.ema)
        data = recipe.data
        self._order = VisitOrder(len(source.corpus), recipe.run.seed, data.repeat, data.window)
        self._stopping = False
        self._saved_at = time.monotonic()
        if state_file.exists():
            self.counters = load_state(state_file, model, self._optimiser, self._average)

    def stop(self) -> None:
        """Finish the step in progress, save, and end. Safe to call from a signal handler."""
        self._stopping = True

    def steps(self) -> Iterator[StepReport]:
        """Train to the recipe's last step, or until `stop`; saves as the recipe says.

        Raises:
            ConfigError: Training has diverged; the last saved state stays.
        """
        self._saved_at = time.monotonic()
        if self.counters.step >= self.recipe.run.steps:
            # A kill may have come between the last state and the drafter made of it.
            self._write_drafter()
        while self.counters.step < self.recipe.run.steps:
            report, stopping = self._step()
            # Recorded before it is saved: a kill in between repeats the step, and its entry.
            self._record(report)
            due = time.monotonic() - self._saved_at >= self.recipe.run.save_seconds
            done = self.counters.step == self.recipe.run.steps
            if due or stopping or done:
                self.save()
            yield report
            if stopping:
                return

    def save(self) -> None:
        """Write the state, and export the averaged weights."""
        if self.world.leads:
            save_state(
                self._state_file,
                self.model,
                self._optimiser,
                self._average,
                self.counters,
                self._identity,
            )
        self._write_drafter()
        self._saved_at = time.monotonic()

    def _write_drafter(self) -> None:
        if self.world.leads:
            self.with_average(lambda: self._export(self.counters))

    def with_average(self, action: Callable[[], Any]) -> Any:
        """Run `action` with the weights that would be exported."""
        if self._average.decay == 0:
            return action()
        self._average.swap()
        try:
            return action()
        finally:
            self._average.swap()

    def measure(self) -> Accuracy | None:
        """Held-out accuracy of the averaged weights; None without held-out data."""
        held_out = self._held_out
        if held_out is None:
            return None
        size = len(held_out.corpus)
        count = min(size, self.recipe.run.eval_sequences)
        # Spread, for the first of a corpus may be all of one kind, or all short.
        picks = [i * size // count for i in range(count)]
        accuracy: Accuracy = self.with_average(
            lambda: measure(self.model, self.tables, held_out, picks, self.dtype)
        )
        return accuracy

    def _step(self) -> tuple[StepReport, bool]:
        begin = time.monotonic()
        recipe, counters = self.recipe, self.counters
        progress = counters.step / recipe.run.steps
        lr = learning_rate(recipe.optimiser, counters.step, recipe.run.steps)
        share = head_share(recipe.loss, progress) if recipe.drafter.head != "none" else 0.0
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        self._optimiser.zero_grad(set_to_none=True)
        total = torch.zeros(_FIGURES + 3 * self.model.spec.num_slots())
        world = self.world
        visits = range(counters.visits, counters.visits + recipe.data.sequences)
        mine = [visit for visit in visits if visit % world.size == world.rank]
        for turn in range(-(-len(visits) // world.size)):
            if turn < len(mine):
                total += self._visit(mine[turn], share)
            else:
                self.source.stand_by()
        stopping = torch.tensor([float(self._stopping)])
        summed = sum_gradients(world, self._parameters, torch.cat((total, stopping)))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, recipe.optimiser.clip)
        if not norm.isfinite():
            raise ConfigError(
                f"Training has diverged: the gradient of step {counters.step + 1} is not finite.",
                "Run it again with a smaller optimiser.lr: it goes on from the last saved state.",
            )
        self._optimiser.step()
        numbers = summed.tolist()
        counters.step += 1
        counters.visits += recipe.data.sequences
        counters.blocks += round(numbers[4])
        self._average.update(counters.step)
        seconds = time.monotonic() - begin
        counters.seconds += seconds
        mean = [x / recipe.data.sequences for x in numbers[:4]]
        slots = self.model.spec.num_slots()
        counts = numbers[_FIGURES : _FIGURES + 3 * slots]
        report = StepReport(
            counters.step,
            counters.blocks,
            round(numbers[4]),
            loss=mean[0],
            base=mean[1],
            corrected=mean[2],
            feature=mean[3],
            counts=tuple(tuple(counts[i * slots : (i + 1) * slots]) for i in range(3)),
            lr=lr,
            share=share,
            grad_norm=float(norm),
            seconds=seconds,
            elapsed=counters.seconds,
        )
        return report, numbers[-1] > 0

    def _visit(self, visit: int, share: float) -> Tensor:
        """Forward and backward over one sequence's blocks; its figures."""
        index = self._order.sample(visit)
        generator = self._order.generator(visit)
        sample = self.source.corpus.samples[index]
        anchors = draw_anchors(sample, self.recipe.data.anchors, generator)
        blocks = make_blocks(sample, anchors, self.model.spec).to(self._device)
        features = self.source[index]
        with autocast(self._device, self.dtype):
            loss = block_loss(
                self.model,
                self.tables,
                features.context,
                features.final,
                blocks,
                self.recipe.loss,
                share,
                generator,
            )
        torch.autograd.backward(loss.total / self.recipe.data.sequences)
        return _figures(loss, len(anchors))


_FIGURES = 5


def _figures(loss: BlockLoss, blocks: int) -> Tensor:
    """Loss, its three terms, blocks, then counts: one vector, so that one transfer sums them."""
    head = torch.cat((loss.total.detach().float().view(1), loss.terms.float())).cpu()
    return torch.cat((head, torch.tensor([float(blocks)]), loss.counts.flatten().cpu()))
