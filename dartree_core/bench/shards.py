"""One benchmark over several processes: prompts are handed out, cases come back as one run.

Every process measures whole cases, all variants side by side on its own device, so a shared run
compares methods as fairly as a single one. Who measures what is decided as they go: whoever is
free takes the next prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.bench.journal import Journal, MemoryJournal, part_of
from dartree_core.bench.records import Case

if TYPE_CHECKING:
    from dartree_core.bench.run import Bench
    from dartree_core.parallel.group import Group


_QUEUE = "bench"


class Shards:
    """This process's share of a run.

    Args:
        group: The processes that share it; None for a process alone.
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group

    @property
    def leads(self) -> bool:
        """True for the process that reports."""
        return self._group is None or self._group.world.leads

    def begin(
        self, run: Bench, path: Path | None, header: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Give `run` its journal and its part of the prompts.

        Args:
            run: Ready to start.
            path: The run's journal, or None to keep none; others than the first write beside it.
            header: See `journal_header`.
            resume: Go on with an earlier run, however many processes it had.

        Raises:
            ConfigError: There is a journal already, none to resume, or of another run.
        """
        group = self._group
        if self.leads and path is not None:
            run.journal = (Journal.resume if resume else Journal.start)(path, header)
        if group is None:
            return
        # All must agree on what is left to do.
        known = group.gather(run.journal.cases)[0]
        if not self.leads:
            rank = group.world.rank
            run.journal = (
                MemoryJournal() if path is None else Journal.start(part_of(path, rank), header)
            )
            run.journal.cases.extend(known)
        run.tickets = group.tickets(_QUEUE)

    def collect(self, run: Bench, cases: Sequence[Case]) -> list[Case]:
        """All processes' cases in the order of the plan; the first one's journal has them too."""
        group = self._group
        if group is None:
            return list(cases)
        ended = run.ended
        if ended == "interrupted":
            group.sell_out(_QUEUE)  # the others stop after the prompt they are at
        for theirs, end, missing in group.gather((list(cases), run.ended, run.missing)):
            known = {case.key for case in run.journal.cases}
            ended = ended or end
            run.missing |= missing
            if self.leads:
                for case in theirs:
                    if case.key not in known:
                        run.journal.add(case)
        run.ended = ended
        if self.leads and isinstance(run.journal, Journal):
            run.journal.drop_parts()
        order = {(d, row.id, t): i for i, (d, row, t) in enumerate(run.plan.units())}
        wanted = [case for case in run.journal.cases if case.key in order]
        return sorted(wanted, key=lambda case: order[case.key])
