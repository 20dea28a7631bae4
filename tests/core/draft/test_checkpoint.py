"""Checkpoints: a strict account of files and tensors, and no pickles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dartree_core.draft import load_drafter, read_checkpoint
from dartree_core.errors import CheckpointError
from tests.core import tiny


def config(**changes: object) -> dict[str, object]:
    return tiny.draft_config(tiny.target("llama"), **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save_draft(tmp_path / "draft", config())


def change(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_saved_and_read_again(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    saved = load_file(folder / "model.safetensors")
    ours = {**checkpoint.backbone.state_dict(), **checkpoint.head.state_dict()}
    assert ours.keys() == saved.keys()
    assert all(torch.equal(ours[n], saved[n]) for n in saved)
    assert not any(p.requires_grad for p in checkpoint.backbone.parameters())
    assert not checkpoint.backbone.training
    assert checkpoint.vocab_ids is None


@pytest.mark.parametrize("prefix", ["logit_head.", "model.", "model.logit_head."])
def test_nested_names_of_early_files(tmp_path: Path, prefix: str) -> None:
    """The head under `logit_head.`, everything under `model.`, or both."""

    def rename(name: str) -> str:
        is_head = name.startswith(("prefix_gru", "embed_proj"))
        head = "logit_head." if is_head and "logit_head" in prefix else ""
        outer = "model." if prefix.startswith("model.") else ""
        return outer + head + name

    plain = tiny.save_draft(tmp_path / "plain", config())
    nested = tiny.save_draft(tmp_path / "nested", config(), rename=rename)
    names = load_file(nested / "model.safetensors")
    assert any(n.startswith(prefix) for n in names)
    ours, theirs = read_checkpoint(nested), read_checkpoint(plain)
    for a, b in ((ours.backbone, theirs.backbone), (ours.head, theirs.head)):
        for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
            assert torch.equal(x, y), name


def test_tensors_spread_over_several_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: tensors[n] for n in part}, folder / f"model-0000{i}-of-00002.safetensors")
    found = read_checkpoint(folder)
    assert torch.equal(found.backbone.fc.weight, tensors["fc.weight"])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("norm.weight"), r"missing norm\.weight"),
        (lambda t: t.pop("prefix_gru.weight_hh_l0"), r"missing prefix_gru\.weight_hh_l0"),
        (lambda t: t.update({"q_proj.weight": torch.zeros(2)}), r"left over q_proj\.weight"),
        (
            lambda t: t.update({"lm_head.weight": torch.zeros(2)}),
            r"lm_head\.weight is \[2\], config\.json implies \[48, 32\]",
        ),
        (
            lambda t: t.update({"fc.weight": torch.zeros(32, 96)}),
            r"fc\.weight is \[32, 96\], config\.json implies \[32, 64\]",
        ),
    ],
    ids=["missing", "head-missing", "left-over", "wrong-table", "wrong-shape"],
)
def test_tensors_that_do_not_match_are_named(
    folder: Path, edit: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    change(folder, edit)
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(folder)
    assert str(folder) in error.value.message


def test_many_missing_tensors_are_summed_up(folder: Path) -> None:
    change(folder, lambda t: [t.pop(n) for n in list(t)[3:]] and None)  # type: ignore[func-returns-value]
    with pytest.raises(CheckpointError, match=r"and \d+ more"):
        read_checkpoint(folder)


def test_a_head_the_configuration_does_not_name_is_left_over(tmp_path: Path) -> None:
    """A head that would be ignored silently costs acceptance nobody can explain."""
    folder = tiny.save_draft(tmp_path / "draft", config())
    (folder / "config.json").write_text(json.dumps(config(projector_type=None)))
    with pytest.raises(CheckpointError, match=r"left over embed_proj"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickled_weights_are_refused_unread(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(CheckpointError, match=rf"only pickled weights \({name}\)"):
        read_checkpoint(folder)


def test_pickles_beside_safetensors_are_not_looked_at(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"nonsense")
    read_checkpoint(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        read_checkpoint(folder)


def test_damaged_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), (None, "no readable drafter config")],
    ids=["cut", "list", "missing"],
)
def test_unreadable_configuration(folder: Path, text: str | None, message: str) -> None:
    file = folder / "config.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(folder)


def test_reduced_vocabulary_needs_its_map(tmp_path: Path) -> None:
    folder = tiny.save_draft(tmp_path / "draft", config(draft_vocab_size=10))
    with pytest.raises(CheckpointError, match="no 'draft_vocab_ids' or 'd2t' tensor"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 16}, "hidden size 16, the target 32"),
        ({"num_target_layers": 36}, "target of 36 layers; this one has 4"),
        ({"target_layer_ids": [0, 4]}, r"layers \[0, 4\]"),
        ({"target_layer_ids": [-1, 2]}, r"layers \[-1, 2\]"),
        ({"mask_token_id": 48}, "mask token 48 has no row"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = tiny.save_draft(tmp_path / "draft", config(**changes))
    with pytest.raises(CheckpointError, match=message):
        load_drafter(folder, tiny.target("llama"))


def test_mask_in_the_padding_of_the_target_is_fine(tmp_path: Path) -> None:
    """Mask ids of public drafters lie behind the tokenizer's last id."""
    target = tiny.target("qwen3-padded")
    folder = tiny.save_draft(
        tmp_path / "draft", tiny.draft_config(target, mask_token_id=tiny.VOCAB + 5)
    )
    load_drafter(folder, target)
