"""Whether a corpus is by the target that learns from it."""

from __future__ import annotations

from dartree_core.models.target import Target
from dartree_core.train.corpus import Corpus, CorpusError


def refuse_foreign_ids(corpus: Corpus, target: Target, what: str) -> None:
    """See that the target knows every token.

    Args:
        corpus: Of any origin.
        target: Would read it.
        what: The corpus, as an error names it.

    Raises:
        CorpusError: A token has no row in the target's tables.
    """
    embedded = len(target.embedding.weight)
    for sample in corpus.samples:
        highest = int(sample.tokens.max(initial=0))
        answered = int(sample.tokens[sample.answer :].max(initial=0))
        if highest >= embedded or answered >= target.vocab_size:
            raise CorpusError(
                f"{what} holds token {max(highest, answered)}, but the target has "
                f"{min(embedded, target.vocab_size)} tokens.",
                "Use answers by this target; `dartree train corpus` makes some.",
            )


def foreign_note(corpus: Corpus, digest: str, what: str) -> str:
    """A sentence for the user where the corpus says that other weights made it, else "".

    Args:
        corpus: With what its shards say of their making.
        digest: `describe_target` of the target that learns.
        what: The corpus, as the sentence names it.
    """
    makers = {
        str(meta.get("target") or "another target")
        for meta in corpus.meta
        if meta.get("target_digest", digest) != digest
    }
    if not makers:
        return ""
    return (
        f"{what} was not made by these weights in this precision, but by "
        f"{', '.join(sorted(makers))}; the target may answer otherwise."
    )
