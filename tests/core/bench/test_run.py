from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dartree_core.bench import run as loop
from dartree_core.bench.journal import Journal
from dartree_core.bench.records import Case, Row
from dartree_core.bench.run import Bench, Progress
from dartree_core.bench.speakers import converse
from dartree_core.config import METHODS
from dartree_core.errors import ConfigError
from tests.core import tiny

Make = Callable[..., Bench]
HEADER = {"models": "tiny"}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_method_gives_plain_decodings_ids(make: Make, temperature: float) -> None:
    bench = make(METHODS, temperatures=[temperature], seed=3)
    cases = bench.run()
    assert len(cases) == 3
    for case in cases:
        assert [s.variant.split()[0] for s in case.samples] == list(METHODS)
        ids = {tuple(s.turns[0].token_ids) for s in case.samples}
        assert len(ids) == 1
        assert all(s.identical is True and not s.error for s in case.samples)
        assert all(s.decode_tokens == 19 and s.decode_s > 0 for s in case.samples)


def test_temperatures_are_separate_cases_with_their_own_baseline(make: Make) -> None:
    cases = make(temperatures=[0.0, 1.0], data={"a": [Row("r", (), (5, 17, 3))]}).run()
    assert [case.temperature for case in cases] == [0.0, 1.0]
    cold, warm = (case.samples[0].turns[0].token_ids for case in cases)
    assert cold != warm
    assert all(s.identical for case in cases for s in case.samples)


def test_methods_take_turns_at_going_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: list[str] = []

    def spy(asker: Any, speaker: Any, row: Row, config: Any) -> Any:
        spoken.append(config.method)
        return converse(asker, speaker, row, config)

    bench = make(["ddtree", "dartree"])
    monkeypatch.setattr(loop, "converse", spy)
    bench.run()
    warm_up, *measured = [tuple(spoken[i : i + 3]) for i in range(0, len(spoken), 3)]
    assert warm_up == ("ar", "ddtree", "dartree")
    assert [order[0] for order in measured] == ["ar", "ddtree", "dartree"]
    assert all(set(order) == {"ar", "ddtree", "dartree"} for order in measured)


def test_of_several_passes_the_median_one_counts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: dict[str, list[float]] = {}

    def timed(asker: Any, speaker: Any, row: Row, config: Any) -> Any:
        prompts, turns = converse(asker, speaker, row, config)
        passed = times.setdefault(config.method, [])
        passed.append((3.0, 1.0, 2.0)[len(passed) % 3])
        return prompts, [replace(turns[0], decode_s=passed[-1])]

    bench = make(["dartree"], data={"x": [Row("one", (), (5, 17, 3))]}, repeats=3)
    monkeypatch.setattr(Bench, "_warm_up", lambda self, row: None)
    monkeypatch.setattr(loop, "converse", timed)
    (case,) = bench.run()
    assert times == {"ar": [3.0, 1.0, 2.0], "dartree": [3.0, 1.0, 2.0]}
    assert [sample.decode_s for sample in case.samples] == [2.0, 2.0]
    assert all(sample.identical for sample in case.samples)


def test_every_pass_is_compared(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def lying(asker: Any, speaker: Any, row: Row, config: Any) -> Any:
        prompts, turns = converse(asker, speaker, row, config)
        calls.append(config.method)
        slow = replace(turns[0], decode_s=9.0 + len(calls))
        if calls.count("dartree") == 2 and config.method == "dartree":
            slow = replace(slow, token_ids=[*slow.token_ids[:2], slow.token_ids[2] ^ 1])
        return prompts, [slow]

    bench = make(["dartree"], data={"x": [Row("one", (), (5, 17, 3))]}, repeats=3)
    monkeypatch.setattr(Bench, "_warm_up", lambda self, row: None)
    monkeypatch.setattr(loop, "converse", lying)
    (case,) = bench.run()
    assert [sample.identical for sample in case.samples] == [True, False]
    assert case.samples[1].divergence


def test_a_prompt_that_fails_is_reported_and_the_rest_measured(make: Make) -> None:
    bad = [Row("foreign", (), (5, 99999)), Row("long", (), (3,) * 600)]
    good = [Row("fine", (), (5, 17, 3)), Row("also", (), (9, 9))]
    cases = make(data={"x": [*bad, *good]}).run()
    errors = {case.row: [s.error for s in case.samples] for case in cases}
    assert errors["fine"] == errors["also"] == ["", ""]
    assert all("99999" in e for e in errors["foreign"])
    assert all("600 tokens" in e for e in errors["long"])
    assert all(s.identical is None and not s.turns for s in cases[0].samples)


def test_a_method_that_fails_leaves_the_others_theirs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(["ddtree", "dartree"])
    broken = next(v.key for v in bench.plan.variants if v.method == "ddtree")
    answer = bench.speakers[broken].answer
    calls: list[int] = []

    def sometimes(prompt: Any, config: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return answer(prompt, config)

    monkeypatch.setattr(bench.speakers[broken], "answer", sometimes)
    cases = bench.run()
    errors = [[s.error for s in case.samples] for case in cases]
    assert errors == [["", "", ""], ["", "MemoryError", ""], ["", "", ""]]


def test_stopping_drops_the_case_at_hand_and_keeps_the_others(make: Make, tmp_path: Path) -> None:
    bench = make()
    bench.journal = Journal.start(tmp_path / "j.jsonl", HEADER)

    def watch(now: Progress) -> None:
        if now.done == 1:
            bench.stop.ask()

    bench.progress = watch
    cases = bench.run()
    assert bench.ended == "interrupted"
    assert [case.row for case in cases] == ["r0"]
    again = make()
    again.journal = Journal.resume(tmp_path / "j.jsonl", HEADER)
    finished = again.run()
    assert again.ended == ""
    assert [case.row for case in finished] == ["r0", "r1", "r2"]
    assert finished[0] == cases[0]


def test_stopping_in_the_middle_of_an_answer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(["dartree"], max_new_tokens=400)
    speaker = bench.speakers["ar"]
    decoder = speaker._decoder  # type: ignore[attr-defined]
    stream = decoder.stream
    seen: list[str] = []

    def interrupted(prompt: Any, config: Any, **options: Any) -> Any:
        for event in stream(prompt, config, **options):
            seen.append(type(event).__name__)
            if config.max_new_tokens == 400 and seen.count("RoundDone") == 30:
                bench.stop.ask()
            yield event

    monkeypatch.setattr(decoder, "stream", interrupted)
    assert bench.run() == []
    assert bench.ended == "interrupted"
    assert seen.count("RoundDone") == 30
    assert seen[-1] == "TurnFinished"


def test_a_time_limit_ends_between_prompts(make: Make) -> None:
    bench = make()
    bench.max_seconds = 0.0
    assert bench.run() == []
    assert bench.ended == "time limit"


def test_progress_counts_cases_and_estimates_what_is_left(make: Make, tmp_path: Path) -> None:
    bench = make()
    heard: list[Progress] = []
    bench.progress = heard.append
    bench.run()
    assert [(p.what, p.done, p.total) for p in heard] == [
        ("warming up", 0, 3),
        ("ids", 0, 3),
        ("ids", 1, 3),
        ("ids", 2, 3),
    ]
    assert [p.seconds_left is None for p in heard] == [True, True, False, False]


def test_a_whole_journal_needs_no_model(make: Make, tmp_path: Path) -> None:
    first = make()
    first.journal = Journal.start(tmp_path / "j", HEADER)
    cases = first.run()
    second = make()
    second.journal = Journal.resume(tmp_path / "j", HEADER)
    second.speakers = {}
    assert second.run() == cases


def test_journals_refuse_to_mix_or_to_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal.start(path, HEADER).add(Case("d", "r", 0.0))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="earlier run") as caught:
        Journal.start(path, HEADER)
    assert "--resume" in caught.value.remedy
    with pytest.raises(ConfigError, match="another models"):
        Journal.resume(path, {"models": "other"})
    with pytest.raises(ConfigError, match="no run to resume"):
        Journal.resume(tmp_path / "none", HEADER)
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(ConfigError, match="no journal"):
        Journal.resume(tmp_path / "other", HEADER)


@pytest.mark.parametrize("end", [-9, b"\xc3"], ids=["anywhere", "in-a-character"])
def test_a_cut_last_line_is_measured_again(end: int | bytes, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal.start(path, HEADER)
    for row in ("a", "b\u00e9"):
        journal.add(Case("d", row, 0.0))
    whole = path.read_bytes()
    path.write_bytes(whole[: end if isinstance(end, int) else whole.rindex(end) + 1])
    again = Journal.resume(path, HEADER)
    assert [case.row for case in again.cases] == ["a"]
    again.add(Case("d", "b\u00e9", 0.0))
    assert path.read_bytes() == whole


def test_cases_survive_json(make: Make) -> None:
    for case in make(["dartree"], {"budget": ["auto", 4]}).run():
        assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


def test_auto_budgets_learn_from_their_own_rounds_only(make: Make) -> None:
    bench = make(["ddtree", "dartree"], {"budget": ["auto"]})
    policies = {
        id(s._decoder.budget_policy())  # type: ignore[attr-defined]
        for key, s in bench.speakers.items()
        if key != "ar"
    }
    assert len(policies) == 2


def test_conversations_go_on_from_the_decoders_own_answers(make: Make) -> None:
    speaking = tiny.saying("the cat sat on the mat")
    row = Row("talk", ("hello", "and then"))
    cases = make(["dartree"], data={"t": [row]}, using=speaking, max_new_tokens=12).run()
    for sample in cases[0].samples:
        assert not sample.error
        first, second = sample.turns
        assert second.prompt_tokens > first.prompt_tokens + len(first.token_ids)
        assert second.reused_tokens >= first.prompt_tokens
        assert sample.identical


def test_settings_that_do_not_fit_are_refused_before_anything_runs(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"[Bb]lock"):
        make(["dartree"], {"block_size": [64]})
    with pytest.raises(ConfigError, match="tokenizer"):
        make(data={"t": [Row("t", ("text",))]})
    with pytest.raises(ConfigError, match="2 turns"):
        make(
            data={"t": [Row("t", ("a", "b"))]},
            using=tiny.saying("the cat"),
            asking={"raw": True},
        )


def test_without_a_drafter_only_plain_decoding_runs(make: Make, decoder: Any) -> None:
    alone = type(decoder)(decoder.target)
    with pytest.raises(ConfigError, match="no drafter"):
        make(["dartree"], using=alone)
    assert len(make([], using=alone).run()) == 3
