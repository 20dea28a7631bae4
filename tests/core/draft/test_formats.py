"""Every public format, with tiny shapes: it loads, drafts as it should, and decodes losslessly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dartree_core.config import DecodeConfig
from dartree_core.draft import load_drafter, read_checkpoint
from dartree_core.engine import Decoder
from dartree_core.errors import CheckpointError
from tests.core import drafters, tiny

TARGET = tiny.target("llama")
ROOT = torch.tensor([7])


def folder_of(tmp_path: Path, name: str, **changes: Any) -> Path:
    config = drafters.shrunk(drafters.PUBLIC[name]) | changes
    return drafters.write(tmp_path / name, config, TARGET)


def change(folder: Path, **tensors: Tensor | None) -> None:
    """Replace tensors of a checkpoint, or drop them with None; `.` is spelt `__`."""
    found = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        name = name.replace("__", ".")
        if tensor is None:
            del found[name]
        else:
            found[name] = tensor
    save_file(found, folder / "model.safetensors")


@pytest.mark.parametrize("name", drafters.PUBLIC)
def test_it_loads_and_decodes_losslessly(tmp_path: Path, name: str) -> None:
    decoder = Decoder(TARGET, load_drafter(folder_of(tmp_path, name), TARGET))
    for method in ("dartree", "domino"):
        config = DecodeConfig(method=method, max_new_tokens=12)  # type: ignore[arg-type]
        answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, config).token_ids
        assert decoder.generate(tiny.PROMPT, config).token_ids == answer


@pytest.mark.parametrize("name", drafters.PUBLIC)
def test_layer_ids_name_the_outputs_that_the_format_means(tmp_path: Path, name: str) -> None:
    """transformers' hidden state 0 is the embedding; one layer off is the classic fault."""
    folder = folder_of(tmp_path, name)
    draft = load_drafter(folder, TARGET)
    config = json.loads((folder / "config.json").read_text())
    ids = config.get("aux_hidden_state_layer_ids")
    if ids is None:
        own = config.get("target_layer_ids") or config["dflash_config"]["target_layer_ids"]
        ids = [i + 1 for i in own]
    model: Any = TARGET.model
    states = model(torch.tensor([tiny.PROMPT]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[i][0] for i in ids], dim=-1)
    tokens = torch.tensor(tiny.PROMPT)
    features = TARGET.forward(tokens, TARGET.new_cache(), taps=draft.taps).features
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("dflash-v1", 15),
        ("dflash-v1-sliding", 15),
        ("domino", 16),
        ("dflash2", 15),
        ("dspark-deepspec", 7),
        ("dspark-specforge", 7),
        ("speculators-dflash", 7),
        ("speculators-dspark", 8),
        ("speculators-dflash2", 7),
    ],
)
def test_which_rows_of_a_block_predict(tmp_path: Path, name: str, slots: int) -> None:
    draft = load_drafter(folder_of(tmp_path, name), TARGET)
    block = draft.draft(ROOT, context(draft))
    assert block.num_slots == slots == draft.spec.num_slots()


def context(draft: Any) -> Any:
    cache = draft.new_cache()
    generator = torch.Generator().manual_seed(1)
    draft.extend(torch.randn(5, 2 * tiny.HIDDEN, generator=generator), cache)
    return cache


@pytest.mark.parametrize("name", drafters.PUBLIC)
@pytest.mark.parametrize("edit", ["missing", "left-over", "wrong-shape"])
def test_tensors_are_accounted_for_strictly(tmp_path: Path, name: str, edit: str) -> None:
    folder = folder_of(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    own = drafters.stored(drafters.shrunk(drafters.PUBLIC[name]), TARGET)
    victims = [n for n in sorted(set(tensors) - set(own)) if not n.startswith("layers.0.")]
    for victim in victims if edit == "missing" else victims[:1]:
        damaged = dict(tensors)
        if edit == "missing":
            del damaged[victim]
        elif edit == "left-over":
            damaged[f"{victim}_scale"] = torch.ones(1)
        else:
            damaged[victim] = torch.ones(1, 1, 1, 1)
        save_file(damaged, folder / "model.safetensors")
        if edit == "missing" and victim == "confidence_head.proj.bias":
            read_checkpoint(folder)  # some heads have none
            continue
        with pytest.raises(CheckpointError, match=victim.replace(".", r"\.")):
            read_checkpoint(folder)


class TestSpeculators:
    def test_reduced_vocabulary(self, tmp_path: Path) -> None:
        """`d2t` holds offsets: target id minus row."""
        checkpoint = read_checkpoint(folder_of(tmp_path, "speculators-dflash"))
        assert checkpoint.vocab_ids is not None
        assert checkpoint.vocab_ids.tolist() == drafters.REDUCED
        draft = load_drafter(checkpoint.path, TARGET)
        assert draft.vocabulary.to_target(torch.arange(3)).tolist() == drafters.REDUCED[:3]

    def test_maps_that_contradict_each_other(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "speculators-dflash")
        change(folder, d2t=torch.tensor(drafters.REDUCED))  # ids where offsets belong
        with pytest.raises(CheckpointError, match="'d2t' and 't2d'"):
            read_checkpoint(folder)

    def test_a_reduced_vocabulary_needs_its_map(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "speculators-dflash")
        change(folder, d2t=None)
        with pytest.raises(CheckpointError, match=r"reduced vocabulary but no .* 'd2t'"):
            read_checkpoint(folder)

    def test_maps_of_a_whole_vocabulary_are_void(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "speculators-dspark")
        zeros = torch.zeros(tiny.VOCAB, dtype=torch.int64)
        change(folder, d2t=zeros, t2d=zeros == 0)
        assert read_checkpoint(folder).vocab_ids is None


class TestStoredTables:
    """Tables in the file: the target's own are borrowed, others are used as they are."""

    def test_copies_of_the_targets_are_borrowed(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "dspark-deepspec")
        with_tables = load_drafter(folder, TARGET)
        assert with_tables._embedding is None
        change(folder, embed_tokens__weight=None, lm_head__weight=None)
        without = load_drafter(folder, TARGET)
        ours, theirs = (d.draft(ROOT, context(d)) for d in (with_tables, without))
        assert torch.equal(ours.base_logits, theirs.base_logits)

    def test_an_embedding_of_its_own(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "dspark-deepspec")
        plain = load_drafter(folder, TARGET)
        change(folder, embed_tokens__weight=2.0 * TARGET.embedding.weight.detach())
        own = load_drafter(folder, TARGET)
        tokens = torch.tensor([3, 9])
        assert torch.equal(own._embed(tokens), 2.0 * plain._embed(tokens))
        assert not torch.allclose(
            own.draft(ROOT, context(own)).hidden, plain.draft(ROOT, context(plain)).hidden
        )

    def test_an_output_of_its_own(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "dspark-deepspec")
        plain = load_drafter(folder, TARGET)
        table = TARGET.output_weight.detach().flip(0).contiguous()
        change(folder, lm_head__weight=table)
        own = load_drafter(folder, TARGET)
        ours, theirs = (d.draft(ROOT, context(d)).base_logits for d in (own, plain))
        torch.testing.assert_close(ours, theirs.flip(1))

    def test_an_output_over_a_reduced_vocabulary(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "speculators-dflash")
        borrowed = load_drafter(folder, TARGET)
        table = TARGET.output_weight.detach()[torch.tensor(drafters.REDUCED)]
        change(folder, lm_head__weight=-table)
        own = load_drafter(folder, TARGET)
        ours, theirs = (d.draft(ROOT, context(d)).base_logits for d in (own, borrowed))
        torch.testing.assert_close(ours, -theirs)

    @pytest.mark.parametrize("rows", [-30, 8])
    def test_tables_padded_otherwise_than_the_targets(self, tmp_path: Path, rows: int) -> None:
        """A drafter that knows more or fewer rows than its target; both tables its own."""
        vocab = tiny.VOCAB + rows
        config = drafters.shrunk(drafters.DSPARK) | {"vocab_size": vocab, "mask_token_id": 5}
        table = torch.randn(vocab, tiny.HIDDEN, generator=torch.Generator().manual_seed(4))
        extra = {"embed_tokens.weight": table, "lm_head.weight": table.clone()}
        folder = tiny.save_draft(tmp_path / "padded", config, extra=extra)
        decoder = Decoder(TARGET, load_drafter(folder, TARGET))
        turn = DecodeConfig(max_new_tokens=12)
        answer = tiny.plain(tiny.family("llama"), tiny.PROMPT, turn).token_ids
        assert decoder.generate(tiny.PROMPT, turn).token_ids == answer
        assert rows > 0 or max(answer) >= vocab, "no root is unknown to the drafter"


class TestWhatTheTensorsSettle:
    """Where a configuration is silent about its confidence head, the file's tensors tell."""

    @pytest.mark.parametrize("reads_token", [True, False])
    @pytest.mark.parametrize("biased", [True, False])
    def test_confidence(self, tmp_path: Path, reads_token: bool, biased: bool) -> None:
        config = drafters.shrunk(drafters.DSPARK)
        del config["enable_confidence_head"], config["confidence_head_with_markov"]
        folder = drafters.write(tmp_path / "draft", config, TARGET)
        if not reads_token:
            change(folder, confidence_head__proj__weight=torch.ones(1, tiny.HIDDEN))
        if not biased:
            change(folder, confidence_head__proj__bias=None)
        head: Any = read_checkpoint(folder).head
        width = tiny.HIDDEN + (6 if reads_token else 0)
        assert head.confidence_head.proj.weight.shape == (1, width)
        assert (head.confidence_head.proj.bias is not None) == biased

    def test_no_confidence(self, tmp_path: Path) -> None:
        config = drafters.shrunk(drafters.DSPARK)
        del config["enable_confidence_head"], config["confidence_head_with_markov"]
        folder = drafters.write(tmp_path / "draft", config, TARGET)
        change(folder, confidence_head__proj__weight=None, confidence_head__proj__bias=None)
        head: Any = read_checkpoint(folder).head
        assert head.confidence_head is None

    def test_what_the_configuration_says_counts(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, "dspark-deepspec", enable_confidence_head=False)
        change(folder, confidence_head__proj__weight=torch.ones(1, tiny.HIDDEN + 6))
        with pytest.raises(CheckpointError, match=r"left over confidence_head\.proj\.weight"):
            read_checkpoint(folder)


@pytest.mark.parametrize("nesting", ["logit_head.", "model.logit_head."])
def test_nested_names_of_early_dspark_files(tmp_path: Path, nesting: str) -> None:
    config = drafters.shrunk(drafters.DSPARK_SPECFORGE)
    nested = tiny.save_draft(
        tmp_path / "nested",
        config,
        rename=lambda n: nesting + n if n.startswith(("markov", "confidence")) else n,
    )
    plain = tiny.save_draft(tmp_path / "plain", config)
    ours, theirs = read_checkpoint(nested).head, read_checkpoint(plain).head
    for (name, a), (_, b) in zip(
        ours.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "biases",
    [
        ["embed_proj.0.bias"],
        ["embed_proj.2.bias"],
        ["prefix_gru.bias_ih_l0", "prefix_gru.bias_hh_l0"],
        [
            "embed_proj.0.bias",
            "embed_proj.2.bias",
            "prefix_gru.bias_ih_l0",
            "prefix_gru.bias_hh_l0",
        ],
    ],
)
def test_optional_biases_of_a_domino_head_are_loaded(tmp_path: Path, biases: list[str]) -> None:
    widths = {"embed_proj.0": 8, "embed_proj.2": tiny.VOCAB, "prefix_gru": 36}
    generator = torch.Generator().manual_seed(2)
    extra = {
        name: torch.randn(widths[name.rsplit(".", 1)[0]], generator=generator) for name in biases
    }
    config = drafters.shrunk(drafters.DOMINO_8B)
    head: Any = read_checkpoint(tiny.save_draft(tmp_path / "draft", config, extra=extra)).head
    tokens = torch.tensor([3, 9, 1])
    embeddings = TARGET.embed(tokens)
    state = head.root_state(tokens[:1], embeddings[:1])
    for i in (1, 2):
        state = head.advance(state, tokens[i : i + 1], embeddings[i : i + 1])
    _, last = head.prefix_gru(embeddings[None])
    torch.testing.assert_close(state, last[0])
    hidden = torch.randn(1, tiny.HIDDEN, generator=generator)
    whole = head.embed_proj(torch.cat((hidden, state), -1))
    torch.testing.assert_close(head.correct(head.prepare(hidden)[0], state, None), whole)
    rows = torch.tensor([5, 0])
    torch.testing.assert_close(head.correct(head.prepare(hidden)[0], state, rows), whole[:, rows])


def test_half_a_pair_of_biases_is_named(tmp_path: Path) -> None:
    config = drafters.shrunk(drafters.DOMINO_8B)
    extra = {"prefix_gru.bias_ih_l0": torch.ones(36)}
    folder = tiny.save_draft(tmp_path / "draft", config, extra=extra)
    with pytest.raises(CheckpointError, match=r"missing prefix_gru\.bias_hh_l0"):
        read_checkpoint(folder)
