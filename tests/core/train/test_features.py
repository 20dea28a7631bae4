from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dartree_core.models import Target
from dartree_core.train.corpus import Corpus
from dartree_core.train.features import Features, FeatureSource

TAPS = (0, 2)


def source(target: Target, corpus: Corpus, cache: Path | None, limit: int = 10**9) -> FeatureSource:
    return FeatureSource(target, corpus, TAPS, torch.float32, cache=cache, limit=limit)


def equal(a: Features, b: Features) -> bool:
    return torch.equal(a.context, b.context) and torch.equal(a.final, b.final)


def test_features_are_the_layers_outputs(target: Target, held_out: Corpus) -> None:
    sample = held_out.samples[0]
    found = source(target, held_out, None)[0]
    tokens = torch.from_numpy(sample.tokens)
    out = target.forward(tokens, target.new_cache(), taps=TAPS)
    assert out.features is not None
    torch.testing.assert_close(found.context.float(), out.features, rtol=2e-3, atol=2e-3)
    # The final states are what the output table reads.
    logits = found.final.float() @ target.output_weight.T
    torch.testing.assert_close(logits, out.logits, rtol=2e-2, atol=2e-2)
    assert not found.context.is_inference()


def test_the_cache_gives_back_what_was_computed(
    tmp_path: Path, target: Target, held_out: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = [source(target, held_out, None)[i] for i in range(len(held_out))]
    first = source(target, held_out, tmp_path)
    assert all(equal(first[i], computed[i]) for i in range(len(held_out)))
    again = source(target, held_out, tmp_path)
    monkeypatch.setattr(again, "compute", lambda _: pytest.fail("not cached"))
    assert all(equal(again[i], computed[i]) for i in range(len(held_out)))


def test_the_cache_keeps_its_limit(tmp_path: Path, target: Target, held_out: Corpus) -> None:
    bytes_a_token = 2 * target.hidden_size * (len(TAPS) + 1)
    limit = bytes_a_token * sum(len(s.tokens) for s in held_out.samples[:3])
    small = source(target, held_out, tmp_path, limit)
    for i in range(len(held_out)):
        assert len(small[i].final) == len(held_out.samples[i].tokens)
    written = sum(p.stat().st_size for p in tmp_path.rglob("*.f16"))
    assert written <= limit
    # More room later: what is there stays, the rest is added.
    whole = source(target, held_out, tmp_path)
    assert equal(whole[0], small[0])
    assert equal(whole[5], source(target, held_out, None)[5])


def test_a_write_cut_by_a_kill_is_not_believed(
    tmp_path: Path, target: Target, held_out: Corpus
) -> None:
    first = source(target, held_out, tmp_path)
    good = first[0]
    flags = next(tmp_path.rglob("done.u8"))
    flags.write_bytes(b"\0" + flags.read_bytes()[1:])
    for file in tmp_path.rglob("*.f16"):
        file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    assert equal(source(target, held_out, tmp_path)[0], good)


def test_a_full_disk_only_ends_the_caching(
    tmp_path: Path, target: Target, held_out: Corpus
) -> None:
    first = source(target, held_out, tmp_path)
    kept = first[0]
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.warns(UserWarning, match="cannot be kept on disk"):
            found = first[1]
        again = first[1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    plain = source(target, held_out, None)[1]
    assert equal(found, plain)
    assert equal(again, plain)
    assert equal(first[0], kept)


def test_another_target_corpus_or_layer_has_a_cache_of_its_own(
    target: Target, held_out: Corpus
) -> None:
    base = source(target, held_out, None)
    fewer = Corpus(held_out.samples[1:])
    names = {
        base.describe(),
        source(target, fewer, None).describe(),
        FeatureSource(target, held_out, (1, 2), torch.float32).describe(),
        FeatureSource(target, held_out, TAPS, torch.bfloat16).describe(),
    }
    assert len(names) == 4
    assert source(target, held_out, None).describe() == base.describe()
