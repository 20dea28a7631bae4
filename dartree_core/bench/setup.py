"""From a plan and loaded models to a run that is ready to start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dartree_core.bench.journal import MemoryJournal
from dartree_core.bench.peers import PeerSource
from dartree_core.bench.peers import prepare as prepare_peers
from dartree_core.bench.plan import Plan, Variant
from dartree_core.bench.run import Bench
from dartree_core.bench.speakers import Asker, DecoderSpeaker, Speaker
from dartree_core.bench.stop import Stop
from dartree_core.errors import ConfigError

if TYPE_CHECKING:
    from dartree_core.engine import Decoder


def prepare(
    decoder: Decoder,
    plan: Plan,
    asking: dict[str, Any],
    peer_source: Callable[[], PeerSource],
) -> Bench:
    """Everything ready to run.

    Args:
        decoder: Whose models are used.
        plan: What is measured; peers that cannot be set up are left out of the run.
        asking: Arguments of `Asker`.
        peer_source: Called when there are peers, for where their models are.

    Raises:
        ConfigError: A setting does not fit the models, or a data set's prompts do not.
    """
    for variant in plan.variants:
        _check_variant(decoder, variant, plan)
    asker = Asker(decoder, **asking)
    for rows in plan.datasets.values():
        asker.prompt(rows[0])
    stop = Stop()
    theirs = [v.method for v in plan.variants if v.is_peer]
    peers, missing = prepare_peers(theirs, decoder, peer_source(), stop) if theirs else ({}, {})
    kept = [v for v in plan.variants if v.method not in missing]
    speakers: dict[str, Speaker] = {
        v.key: peers[v.method] if v.is_peer else DecoderSpeaker(decoder, stop) for v in kept
    }
    return Bench(
        plan=replace(plan, variants=kept),
        asker=asker,
        speakers=speakers,
        target=decoder.target,
        journal=MemoryJournal(),
        stop=stop,
        missing=missing,
    )


def _check_variant(decoder: Decoder, variant: Variant, plan: Plan) -> None:
    if variant.is_peer or variant.method == "ar":
        return
    if decoder.drafter is None:
        raise ConfigError(
            f"Method {variant.method!r} drafts, but no drafter is loaded.",
            "Give one with --draft, or measure --methods ar.",
        )
    decoder.drafter.block_size(variant.config(plan.base, 0.0).tree.block_size)
