"""Corpora: what a target answered, as token ids with provenance, in compressed npz shards.

Fields of a shard: `ids` (unsigned integers, all sequences end to end), `off` int64 `[n + 1]`,
`prompt_len` int32 `[n]`, `temp` float32 `[n]`, `prefix` (tokens that stand before every sequence
and are not repeated in `ids`), and optionally `source` `[n]` indexing `source_names`, and
`meta`, a JSON object on how the shard was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from dartree_core.errors import DARTreeError

Ids = npt.NDArray[np.integer[Any]]


class CorpusError(DARTreeError):
    """A corpus file is missing, damaged, or not a corpus."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation.

    Attributes:
        tokens: int64 `[n]`, prefix, prompt and answer.
        answer: Index of the answer's first token.
        temperature: At which the answer was sampled; 0 is greedy.
        source: Name of the prompt's data set, or "".
    """

    tokens: Ids
    answer: int
    temperature: float
    source: str

    def cut(self, length: int) -> Sample:
        """The first `length` tokens."""
        return Sample(self.tokens[:length], self.answer, self.temperature, self.source)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Samples in order, and how they were made."""

    samples: tuple[Sample, ...]
    meta: tuple[dict[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def num_tokens(self) -> int:
        """All tokens, prompts and prefixes included."""
        return sum(len(s.tokens) for s in self.samples)

    @property
    def num_generated(self) -> int:
        """The answers' tokens."""
        return sum(len(s.tokens) - s.answer for s in self.samples)

    def sources(self) -> dict[str, int]:
        """Samples by source."""
        count: dict[str, int] = {}
        for sample in self.samples:
            count[sample.source] = count.get(sample.source, 0) + 1
        return count

    def fingerprint(self) -> str:
        """A digest of every token and boundary, the same wherever the files lie."""
        digest = hashlib.sha256()
        for sample in self.samples:
            digest.update(np.array([len(sample.tokens), sample.answer], dtype=np.int64).tobytes())
            digest.update(sample.tokens.astype(np.int64).tobytes())
        return digest.hexdigest()

    def cut(self, length: int) -> Corpus:
        """Every sample's first `length` tokens."""
        return Corpus(tuple(s.cut(length) for s in self.samples), self.meta)

    def usable(self, min_answer: int = 2) -> Corpus:
        """Only the samples whose answers are long enough to hold a block."""
        kept = tuple(s for s in self.samples if len(s.tokens) - s.answer >= min_answer)
        return Corpus(kept, self.meta)

    def token_counts(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """How often each token occurs in the answers, `[vocab_size]`."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for sample in self.samples:
            answer = sample.tokens[sample.answer :]
            counts += np.bincount(answer, minlength=vocab_size)[:vocab_size]
        return counts


def write_shard(path: Path, samples: Sequence[Sample], meta: Mapping[str, Any]) -> None:
    """Write one shard; a file of that name appears whole or not at all.

    Args:
        path: Ends in `.npz`.
        samples: At least one.
        meta: How they were made, JSON-ready.
    """
    skip = _common_prefix(samples)
    names = sorted({s.source for s in samples})
    bodies = [s.tokens[skip:] for s in samples]
    ids = np.concatenate(bodies)
    prefix = samples[0].tokens[:skip]
    highest = max(int(s.tokens.max()) for s in samples)
    small = np.uint16 if highest < 2**16 else np.uint32
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            ids=ids.astype(small),
            off=np.cumsum([0, *(len(b) for b in bodies)]).astype(np.int64),
            prompt_len=np.array([s.answer - skip for s in samples], dtype=np.int32),
            temp=np.array([s.temperature for s in samples], dtype=np.float32),
            prefix=prefix.astype(small),
            source=np.array([names.index(s.source) for s in samples], dtype=np.uint16),
            source_names=np.array(names),
            meta=np.array(json.dumps(meta)),
        )
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _common_prefix(samples: Sequence[Sample]) -> int:
    """Tokens that all prompts begin with, such as a default system prompt."""
    length = min(s.answer for s in samples)
    first = samples[0].tokens[:length]
    for sample in samples[1:]:
        differing = np.flatnonzero(sample.tokens[:length] != first[:length])
        if len(differing):
            length = int(differing[0])
    return length


def shard_files(paths: Iterable[str | Path]) -> list[Path]:
    """Files as given, and the `*.npz` of every directory, in order of name.

    Raises:
        CorpusError: A path is not there, or a directory holds no shard.
    """
    found: list[Path] = []
    for given in map(Path, paths):
        if given.is_dir():
            inside = sorted(p for p in given.glob("*.npz") if not p.name.startswith("."))
            if not inside:
                raise CorpusError(
                    f"{given} holds no corpus shards (*.npz).",
                    "Make some with `dartree train corpus`.",
                )
            found += inside
        elif given.is_file():
            found.append(given)
        else:
            raise CorpusError(
                f"There is no corpus at {given}.", "Make one with `dartree train corpus`."
            )
    return found


def read_corpus(paths: Iterable[str | Path]) -> Corpus:
    """Read shards into one corpus.

    Raises:
        CorpusError: A file is missing, damaged or no corpus.
    """
    samples: list[Sample] = []
    metas: list[dict[str, Any]] = []
    for file in shard_files(paths):
        shard = _read_shard(file)
        samples += shard.samples
        metas += shard.meta
    return Corpus(tuple(samples), tuple(metas))


def _read_shard(file: Path) -> Corpus:
    try:
        with np.load(file, allow_pickle=False) as data:
            fields = {name: data[name] for name in data.files}
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise CorpusError(
            f"The corpus {file} cannot be read ({error}).", "Make it again, or leave it out."
        ) from error
    missing = [n for n in ("ids", "off", "prompt_len", "temp", "prefix") if n not in fields]
    if missing:
        raise CorpusError(
            f"{file} is no corpus: it has no {', '.join(missing)}.",
            "Make one with `dartree train corpus`.",
        )
    ids, off, lengths = fields["ids"], fields["off"], fields["prompt_len"]
    n = len(lengths)
    if len(off) != n + 1 or len(fields["temp"]) != n or int(off[-1]) != len(ids):
        raise CorpusError(
            f"The corpus {file} is inconsistent: {n} prompts, {len(off)} offsets, "
            f"{len(ids)} tokens.",
            "Make it again, or leave it out.",
        )
    prefix = fields["prefix"].astype(np.int64)
    names = [str(s) for s in fields["source_names"]] if "source_names" in fields else []
    source = fields.get("source")
    samples = []
    for i in range(n):
        tokens = np.concatenate((prefix, ids[off[i] : off[i + 1]].astype(np.int64)))
        samples.append(
            Sample(
                tokens,
                len(prefix) + int(lengths[i]),
                float(fields["temp"][i]),
                names[int(source[i])] if source is not None else "",
            )
        )
    meta = json.loads(str(fields["meta"])) if "meta" in fields else {}
    return Corpus(tuple(samples), (meta,))
