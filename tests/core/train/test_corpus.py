from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree_core.train.corpus import Corpus, CorpusError, Sample, read_corpus, write_shard


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    highest = draw(st.sampled_from([99, 70_000]))
    token = st.integers(0, highest)
    shared = draw(st.lists(token, max_size=4))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        prompt = [*shared, *draw(st.lists(token, min_size=1, max_size=5))]
        answer = draw(st.lists(token, min_size=1, max_size=6))
        tokens = np.array([*prompt, *answer], dtype=np.int64)
        heat = draw(st.sampled_from([0.0, 0.5, 1.0]))
        found.append(Sample(tokens, len(prompt), heat, draw(st.sampled_from(["", "a", "b"]))))
    return found


def same(a: Sample, b: Sample) -> bool:
    return np.array_equal(a.tokens, b.tokens) and (a.answer, a.temperature, a.source) == (
        b.answer,
        b.temperature,
        b.source,
    )


@settings(max_examples=50)
@given(samples())
def test_shards_round_trip(tmp_path_factory: pytest.TempPathFactory, made: list[Sample]) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    write_shard(folder / "a.npz", made, {"seed": 3})
    read = read_corpus([folder])
    assert all(map(same, read.samples, made))
    assert len(read) == len(made)
    assert read.meta == ({"seed": 3},)
    assert read.fingerprint() == Corpus(tuple(made)).fingerprint()
    assert [p.name for p in folder.iterdir()] == ["a.npz"]


def test_older_shards_without_sources_load(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "old.npz",
        ids=np.array([7, 8, 9, 5], dtype=np.uint16),
        off=np.array([0, 3, 4]),
        prompt_len=np.array([1, 1], dtype=np.int32),
        temp=np.array([0.0, 0.7], dtype=np.float32),
        prefix=np.array([1, 2], dtype=np.uint16),
    )
    corpus = read_corpus([tmp_path / "old.npz"])
    assert corpus.samples[0].tokens.tolist() == [1, 2, 7, 8, 9]
    assert corpus.samples[0].answer == 3
    assert corpus.num_generated == 2
    # The second answer is empty, so it holds no block.
    assert len(corpus.usable()) == 1


def test_token_counts_are_of_answers_only() -> None:
    sample = Sample(np.array([4, 4, 2, 3, 2]), 2, 0.0, "")
    assert Corpus((sample,)).token_counts(5).tolist() == [0, 0, 2, 1, 0]


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.npz"):
        read_corpus([tmp_path / "nowhere.npz"])
    with pytest.raises(CorpusError, match="no corpus shards"):
        read_corpus([tmp_path])
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(CorpusError, match="cannot be read"):
        read_corpus([tmp_path / "text.npz"])
    whole = tmp_path / "whole.npz"
    write_shard(whole, [Sample(np.arange(400), 3, 0.0, "")], {})
    for name, data in (("half", whole.read_bytes()[:-200]), ("torn", _torn(whole.read_bytes()))):
        (tmp_path / f"{name}.npz").write_bytes(data)
        with pytest.raises(CorpusError, match=rf"{name}\.npz cannot be read"):
            read_corpus([tmp_path / f"{name}.npz"])
    np.savez(tmp_path / "other.npz", ids=np.zeros(3))
    with pytest.raises(CorpusError, match="no off, prompt_len, temp, prefix"):
        read_corpus([tmp_path / "other.npz"])
    np.savez(
        tmp_path / "cut.npz",
        ids=np.zeros(3, dtype=np.uint16),
        off=np.array([0, 4]),
        prompt_len=np.array([1]),
        temp=np.array([0.0]),
        prefix=np.zeros(0, dtype=np.uint16),
    )
    with pytest.raises(CorpusError, match="inconsistent"):
        read_corpus([tmp_path / "cut.npz"])


def _torn(data: bytes) -> bytes:
    """The same archive with its first member's contents overwritten."""
    return data[:80] + b"\xff" * 60 + data[140:]
