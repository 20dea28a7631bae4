"""`model.generate(custom_generate=...)` says what `model.generate` says."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
)
from transformers.generation import TopKLogitsWarper
from transformers.generation.streamers import BaseStreamer

from dartree_core import Target, custom_generate, load_drafter
from dartree_core.config import METHODS, DecodeConfig, TreeConfig
from dartree_core.ecosystem import generate
from dartree_core.ecosystem.decoders import decoder_for
from dartree_core.engine import Decoder
from dartree_core.errors import BundleError, CheckpointError, ConfigError, DARTreeError
from tests.core import tiny

NEW = 20
TREE = TreeConfig(budget=12, width=4)
OTHER = [9, 1, 30]


def model_of(name: str) -> Any:
    return tiny.target(name).model


def ask(model: Any, ids: Any = None, **options: Any) -> Any:
    """`generate` with a token limit and padding, and no end token unless asked for."""
    prompt = torch.tensor([tiny.PROMPT]) if ids is None else torch.tensor(ids)
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | options
    return model.generate(prompt, **settings)


def guessing(name: str, ids: Any = None, **options: Any) -> Any:
    """A drafter for a family that has the right token among its best three."""
    answer = ask(model_of(name), ids, **options)[0].tolist()
    drafter = tiny.headless(tiny.target(name))
    drafter.opinion = tiny.vaguely_right(answer)
    return drafter


def batch() -> dict[str, Any]:
    """Two prompts, the shorter one padded on the left."""
    padding = len(tiny.PROMPT) - len(OTHER)
    return {
        "ids": [tiny.PROMPT, [0] * padding + OTHER],
        "attention_mask": torch.tensor([[1] * len(tiny.PROMPT), [0] * padding + [1] * len(OTHER)]),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Domino drafter for the Llama, on disk."""
    path = tmp_path_factory.mktemp("draft") / "drafter"
    return tiny.save_draft(path, tiny.draft_config(tiny.target("llama")))


@pytest.mark.parametrize("method", ["dartree", "ddtree", "dflash"])
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_greedy_output_is_that_of_generate(name: str, method: Any) -> None:
    model = model_of(name)
    drafter = guessing(name)
    found = ask(model, custom_generate=custom_generate, drafter=drafter, method=method, tree=TREE)
    assert found.tolist() == ask(model).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_serves_as_drafter_for_every_method(folder: Path, method: Any) -> None:
    model = model_of("llama")
    found = ask(model, custom_generate=custom_generate, drafter=str(folder), method=method)
    assert found.tolist() == ask(model).tolist()


def test_padded_rows_are_decoded_as_generate_does(folder: Path) -> None:
    """With an end token that the rows reach at different places, and a penalty on the prompt."""
    model = model_of("llama")
    first = ask(model, **batch())
    eos = int(first[1, len(tiny.PROMPT) + 3])
    settings = batch() | {"eos_token_id": [eos, 47], "repetition_penalty": 1.2}
    expected = ask(model, **settings)
    found = ask(model, **settings, custom_generate=custom_generate, drafter=str(folder))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("eos_at", [0, 1, 7])
def test_end_tokens_end_a_row_and_are_kept(folder: Path, eos_at: int) -> None:
    model = model_of("llama")
    start = len(tiny.PROMPT)
    eos = int(ask(model)[0, start + eos_at])
    expected = ask(model, eos_token_id=eos)
    drafter = guessing("llama")
    found = ask(model, eos_token_id=eos, custom_generate=custom_generate, drafter=drafter)
    assert found.tolist() == expected.tolist()
    assert found.shape[1] <= start + eos_at + 1


def test_max_length_counts_the_padded_prompt(folder: Path) -> None:
    model = model_of("llama")
    settings = batch() | {"max_new_tokens": None, "max_length": len(tiny.PROMPT) + 5}
    found = ask(model, **settings, custom_generate=custom_generate, drafter=str(folder))
    assert found.tolist() == ask(model, **settings).tolist()
    assert found.shape == (2, len(tiny.PROMPT) + 5)


class AfterThree(StoppingCriteria):
    """Stops a row three tokens after it has seen `token`; remembers what it was shown."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.lengths: list[int] = []

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.lengths.append(input_ids.shape[1])
        seen = [self.token in row[8:-3].tolist() for row in input_ids]
        return torch.tensor(seen)


def test_criteria_see_every_token_and_cut_exactly() -> None:
    model = model_of("llama")
    start = len(tiny.PROMPT)
    token = int(ask(model)[0, start + 4])
    theirs, ours = AfterThree(token), AfterThree(token)
    expected = ask(model, stopping_criteria=[theirs])
    found = ask(
        model,
        stopping_criteria=[ours],
        custom_generate=custom_generate,
        drafter=guessing("llama"),
        tree=TREE,
    )
    assert found.tolist() == expected.tolist()
    assert found.shape[1] < start + NEW
    assert ours.lengths == theirs.lengths


def test_time_that_is_up_leaves_one_token_a_row(folder: Path) -> None:
    late = [MaxTimeCriteria(max_time=0.0, initial_timestamp=0.0)]
    options = {"custom_generate": custom_generate, "drafter": str(folder)}
    found = ask(model_of("llama"), **batch(), stopping_criteria=late, **options)
    assert found.shape == (2, len(tiny.PROMPT) + 1)


def test_stop_strings_as_criterion_and_as_setting() -> None:
    """The token that completes the string is the last one, as in `generate`."""
    speller = tiny.tokenizer()
    model = tiny._trained_target("target_tied").model
    plain = ask(model)
    text = speller.decode(plain[0, len(tiny.PROMPT) :])
    stop = next(text[i : i + 2] for i in range(4, len(text) - 6) if text[i : i + 2].isprintable())
    expected = ask(model, stop_strings=[stop], tokenizer=speller)
    assert expected.shape[1] < plain.shape[1]
    drafter = str(tiny.CHECKPOINTS / tiny.TRAINED["tied"][1])
    criterion = StopStringCriteria(stop_strings=[stop], tokenizer=speller)
    found = ask(
        model, stopping_criteria=[criterion], custom_generate=custom_generate, drafter=drafter
    )
    assert found.tolist() == expected.tolist()
    found = generate(
        model,
        torch.tensor([tiny.PROMPT]),
        drafter=drafter,
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        stop_strings=[stop],
        tokenizer=speller,
    )
    assert found.tolist() == expected.tolist()


SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02}


def test_what_is_switched_off_stays_off_whatever_the_models_configuration_says(
    folder: Path,
) -> None:
    model = model_of("llama")
    ids = torch.tensor([tiny.PROMPT])
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)[0, len(tiny.PROMPT) :].tolist()
    own = copy.copy(model.generation_config)
    own.eos_token_id = plain[3]
    for changes in ({"eos_token_id": None}, {}):
        asked = {**options, "generation_config": own, **changes}
        expected = model.generate(ids, **asked)
        found = generate(model, ids, drafter=str(folder), **asked)
        assert found.tolist() == expected.tolist()
        assert found.shape[1] == len(tiny.PROMPT) + (NEW if changes else plain.index(plain[3]) + 1)


def test_stop_strings_of_a_configuration(folder: Path) -> None:
    speller = tiny.tokenizer()
    model = tiny._trained_target("target_tied").model
    own = copy.copy(model.generation_config)
    text = speller.decode(ask(model)[0, len(tiny.PROMPT) :])
    own.stop_strings = [
        next(text[i : i + 2] for i in range(4, len(text) - 6) if text[i : i + 2].isprintable())
    ]
    ids = torch.tensor([tiny.PROMPT])
    options = {"generation_config": own, "max_new_tokens": NEW, "pad_token_id": 0}
    expected = model.generate(ids, tokenizer=speller, **options)
    drafter = str(tiny.CHECKPOINTS / tiny.TRAINED["tied"][1])
    found = generate(model, ids, drafter=drafter, tokenizer=speller, **options)
    assert found.tolist() == expected.tolist()
    assert found.shape[1] < len(tiny.PROMPT) + NEW


@pytest.mark.parametrize(
    ("option", "says"), [("synced_gpus", "synced_gpus"), ("assistant_model", "assisted")]
)
def test_what_generate_keeps_from_callables_is_still_refused(
    option: str, says: str, folder: Path
) -> None:
    model = model_of("llama")
    value = True if option == "synced_gpus" else model
    with pytest.raises(ConfigError, match=says):
        ask(model, custom_generate=custom_generate, drafter=str(folder), **{option: value})


def test_sampling_follows_the_seed_whatever_drafts(folder: Path) -> None:
    model = model_of("llama")
    options = SAMPLED | {"custom_generate": custom_generate, "drafter": str(folder)}
    found = [
        ask(model, **options, method=method, seed=seed).tolist()
        for method, seed in [("dartree", 3), ("dartree", 3), ("ddtree", 3), ("ar", 3), ("ar", 4)]
    ]
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    config = DecodeConfig(method="ar", max_new_tokens=NEW, ignore_eos=True).with_changes(
        seed=3, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02
    )
    decoded = Decoder(tiny.target("llama")).generate(tiny.PROMPT, config)
    assert found[0] == [[*tiny.PROMPT, *decoded.token_ids]]


def test_without_a_seed_the_torch_generator_decides(folder: Path) -> None:
    model = model_of("llama")
    options = SAMPLED | {"custom_generate": custom_generate, "drafter": str(folder)}
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found += [ask(model, **options).tolist(), ask(model, **options).tolist()]
    assert found[0] == found[2] != found[4]
    assert found[1] == found[3] != found[0]


def test_returned_sequences_of_one_prompt_differ(folder: Path) -> None:
    options = {"custom_generate": custom_generate, "drafter": str(folder), "seed": 5}
    found = ask(model_of("llama"), **SAMPLED, **options, num_return_sequences=3)
    again = ask(model_of("llama"), **SAMPLED, **options, num_return_sequences=3)
    assert found.tolist() == again.tolist()
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_the_models_own_generation_config_counts(folder: Path) -> None:
    model = model_of("llama")
    prompt = torch.tensor([tiny.PROMPT])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SAMPLED.items():
            patch.setattr(model.generation_config, name, value)
        options = {"custom_generate": custom_generate, "drafter": str(folder), "seed": 3}
        own = model.generate(prompt, max_new_tokens=NEW, pad_token_id=0, **options)
    assert own.tolist() == ask(model, **SAMPLED, **options).tolist()


class Heard(BaseStreamer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("form", ["callable", "function"])
def test_a_streamer_hears_prompt_and_tokens(folder: Path, form: str) -> None:
    model, heard = model_of("llama"), Heard()
    if form == "callable":
        options = {"custom_generate": custom_generate, "drafter": str(folder)}
        found = ask(model, streamer=heard, **options)
    else:
        prompt = torch.tensor([tiny.PROMPT])
        found = generate(model, prompt, streamer=heard, drafter=str(folder), max_new_tokens=NEW)
    assert heard.tokens == found[0].tolist()
    assert heard.ended == 1


def test_a_dictionary_is_returned_when_asked_for(folder: Path) -> None:
    options = {"custom_generate": custom_generate, "drafter": str(folder)}
    found = ask(model_of("llama"), return_dict_in_generate=True, **options)
    assert type(found).__name__ == "GenerateDecoderOnlyOutput"
    assert found.sequences.tolist() == ask(model_of("llama")).tolist()


def test_the_model_stays_as_it_was_and_can_die(folder: Path) -> None:
    torch.manual_seed(3)
    model = tiny.FAMILIES["llama"]().eval()
    before = {name: (p.data_ptr(), p.requires_grad) for name, p in model.named_parameters()}
    attributes, settings = set(vars(model)), model.generation_config.to_dict()
    options = {"custom_generate": custom_generate, "drafter": str(folder)}
    with_trees = ask(model, **options)
    assert {n: (p.data_ptr(), p.requires_grad) for n, p in model.named_parameters()} == before
    assert set(vars(model)) == attributes
    assert model.generation_config.to_dict() == settings
    assert not any(len(m._forward_hooks) for m in model.modules())
    assert ask(model).tolist() == with_trees.tolist()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_drafter_is_loaded_once_for_a_model(folder: Path) -> None:
    model = model_of("llama")
    first = decoder_for(model, str(folder), needed=True)
    assert decoder_for(model, folder, needed=True) is first
    assert decoder_for(model_of("qwen3-padded"), str(folder), needed=True) is not first
    drafter = tiny.drafter(tiny.target("llama"))
    loaded = decoder_for(model, drafter, needed=True)
    assert decoder_for(model, drafter, needed=True) is loaded is not first
    gone = weakref.ref(drafter)
    del drafter, loaded
    gc.collect()
    assert gone() is None


def test_a_model_that_moves_takes_its_drafter_along(folder: Path) -> None:
    torch.manual_seed(3)
    model = tiny.FAMILIES["llama"]().eval()
    options = {"custom_generate": custom_generate, "drafter": str(folder), "tree": TREE}
    ask(model, **options)
    loaded = options | {"drafter": load_drafter(folder, Target(model))}
    assert ask(model, **loaded).tolist() == ask(model).tolist()
    model.to(torch.bfloat16)
    assert ask(model, **options).shape == (1, len(tiny.PROMPT) + NEW)
    with pytest.raises(CheckpointError, match=r"has moved to cpu torch\.bfloat16"):
        ask(model, **loaded)
    model.to(torch.float32)
    assert ask(model, **options).tolist() == ask(model).tolist()


def test_the_end_of_the_context_is_said(folder: Path) -> None:
    options = {"custom_generate": custom_generate, "drafter": str(folder), "max_new_tokens": 200}
    with pytest.warns(UserWarning, match="end of the model's context"):
        found = ask(model_of("llama"), **options)
    assert found.shape[1] == 128


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"min_new_tokens": 3, "eos_token_id": 1}, "MinLengthLogitsProcessor"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"bad_words_ids": [[3]]}, "NoBadWordsLogitsProcessor"),
        ({"suppress_tokens": [3]}, "SuppressTokensLogitsProcessor"),
        ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"do_sample": True, "epsilon_cutoff": 0.1}, "EpsilonLogitsWarper"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"streamer": Heard(), **batch()}, "streamer"),
        ({"inputs_embeds": torch.zeros(1, 8, tiny.HIDDEN)}, "inputs_embeds"),
        ({"attention_mask": torch.tensor([[1] * 7 + [0]])}, "padding_side='left'"),
        ({"position_ids": torch.arange(3, 11)[None]}, "position_ids"),
        (
            {"do_sample": True, "logits_processor": LogitsProcessorList([TopKLogitsWarper(4)])},
            "behind one that transformers applies later",
        ),
        (
            {"do_sample": True, "logits_processor": [TopKLogitsWarper(4, filter_value=-9.0)]},
            "filter_value",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_honoured_is_refused_by_name(
    folder: Path, options: dict[str, Any], named: str
) -> None:
    settings = {"temperature": 0.9, "top_k": 9} if options.get("do_sample") else {}
    if "filter_value" in named:
        settings = {"top_k": 9}
    with pytest.raises(DARTreeError, match=named) as error:
        ask(
            model_of("llama"),
            custom_generate=custom_generate,
            drafter=str(folder),
            **(settings | options),
        )
    assert error.value.remedy


def test_a_processor_given_by_hand_is_honoured(folder: Path) -> None:
    model = model_of("llama")
    options = {"custom_generate": custom_generate, "drafter": str(folder), "seed": 2}
    hot = [TemperatureLogitsWarper(0.5)]
    by_hand = ask(model, do_sample=True, top_k=0, logits_processor=hot, **options)
    as_setting = ask(model, do_sample=True, top_k=0, temperature=0.5, **options)
    assert by_hand.tolist() == as_setting.tolist()


def test_models_that_cannot_be_decoded_are_refused(folder: Path) -> None:
    options: dict[str, Any] = {"custom_generate": custom_generate, "drafter": str(folder)}
    model = model_of("llama")
    model.train()
    try:
        with pytest.raises(ConfigError, match="training mode"):
            ask(model, **options)
    finally:
        model.eval()
    with pytest.raises(CheckpointError, match="another model object"):
        ask(model, custom_generate=custom_generate, drafter=tiny.drafter(tiny.target("qwen3-moe")))
    with pytest.raises(BundleError, match="No drafter is known") as error:
        ask(model, custom_generate=custom_generate)
    assert "drafter=" in error.value.remedy


def test_an_encoder_decoder_model_is_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=20, decoder_start_token_id=0, **shape))
    with pytest.raises(CheckpointError, match="encoder-decoder"):
        model.eval().generate(torch.tensor([[1, 2]]), custom_generate=custom_generate)
