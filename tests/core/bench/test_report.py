from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dartree_core.bench.compare import compare_reports, read_report
from dartree_core.bench.environment import environment
from dartree_core.bench.export import to_csv
from dartree_core.bench.page import to_html
from dartree_core.bench.plan import Plan, variants
from dartree_core.bench.records import Case, Row, Sample, TurnRecord
from dartree_core.bench.report import build, flags
from dartree_core.bench.run import Bench
from dartree_core.bench.stats import quartiles
from dartree_core.bench.svg import nice_ticks
from dartree_core.bench.table import render, render_comparison
from dartree_core.config import DecodeConfig
from dartree_core.engine import Decoder
from dartree_core.errors import ConfigError
from dartree_core.metrics import RunningMetrics, aggregate
from tests.core import tiny

Make = Callable[..., Bench]
ENVIRONMENT = {
    "created": "2026-01-01T00:00:00+00:00",
    "command": "dartree bench <now>",
    "target": {"name": "T"},
    "drafter": {"name": "D"},
    "device": "cpu",
    "dtype": "float32",
    "activation_dtype": "float32",
    "threads": 1,
    "system": "S",
    "machine": {"processor": "P", "cpus": 2, "available": 5},
    "versions": {"torch": "2"},
    "load_average": 0.5,
}


def turn(seconds: float, tokens: int = 11, *, accepted: Sequence[int] = ()) -> TurnRecord:
    histogram = [0] * (max(accepted, default=0) + 1)
    for n in accepted:
        histogram[n] += 1
    metrics = {
        "acceptance_histogram_by_draft_length": (
            {str(len(histogram) - 1): histogram} if accepted else {}
        ),
        "num_plain_steps": 0 if accepted else tokens - 1,
        "num_tree_nodes": 8 * len(accepted),
        "num_supertree_nodes": 9 * len(accepted),
        "bonus_fates": {},
        "num_emitted_tokens": tokens,
        "ttft_s": 0.5,
        "prefill_s": 0.5,
        "stage_ms_total": {"draft": 250.0 * seconds, "verify": 750.0 * seconds},
    }
    context = {"64": [len(accepted), sum(accepted)]} if accepted else {}
    return TurnRecord(
        4, 0, list(range(tokens)), "t", "eos", tokens - 1, seconds, 0.5, metrics, context
    )


def made(
    seconds: dict[str, Sequence[tuple[float, float]]], **changes: Any
) -> tuple[Plan, list[Case], dict[str, Any]]:
    """A report over data sets whose (AR, method) seconds are given, prompt by prompt."""
    data = {name: [Row(str(i), ("q",)) for i in range(len(s))] for name, s in seconds.items()}
    plan = Plan(variants(["dartree"], {"budget": [8]}), data, [0.0], DecodeConfig())
    ours = plan.variants[1].key
    cases = [
        Case(
            name,
            str(i),
            0.0,
            [
                Sample("ar", [turn(plain)], identical=True),
                Sample(ours, [turn(fast, accepted=[3, 2, 2])], identical=True),
            ],
        )
        for name, times in seconds.items()
        for i, (plain, fast) in enumerate(times)
    ]
    for case in cases:
        for name, value in changes.get(f"{case.dataset}/{case.row}", {}).items():
            setattr(case.samples[1], name, value)
    sources = dict.fromkeys(data, "here")
    return plan, cases, build(plan, cases, environment=ENVIRONMENT, sources=sources, missing={})


def test_speedups_are_medians_of_what_prompts_give() -> None:
    _, _, report = made({"a": [(2.0, 1.0), (3.0, 1.0), (8.0, 2.0)]})
    plain, ours = report["rows"]
    assert (plain["method"], plain["speedup"], plain["mean_acceptance_length"]) == ("ar", 1.0, 1.0)
    assert ours["speedup"] == 3.0
    assert (ours["speedup_q1"], ours["speedup_q3"]) == (2.5, 3.5)
    assert ours["speedup_total"] == 13 / 4
    assert ours["tokens_per_second"] == 7.5
    assert ours["tokens_per_second_with_prefill"] == 6.0
    assert ours["speedup_with_prefill"] == round(3.5 / 1.5, 4)
    assert (ours["budget"], ours["width"], plain["budget"]) == (8, 12, None)
    assert (ours["identical"], ours["compared"], ours["prompts"]) == (1.0, 3, 3)
    assert ours["flags"] == "--method dartree --budget 8"


def test_speed_is_per_token_where_answers_differ_in_length() -> None:
    plan, cases, _ = made({"a": [(2.0, 1.0)]})
    cases[0].samples[1].turns = [turn(1.0, tokens=6, accepted=[4])]
    report = build(plan, cases, environment=ENVIRONMENT, sources={"a": ""}, missing={})
    ours = report["rows"][1]
    assert (ours["speedup"], ours["speedup_total"]) == (1.0, 1.0)
    assert ours["speedup_with_prefill"] == round((2.5 / 11) / (1.5 / 6), 4)


def test_acceptance_counts_emitted_tokens_and_the_bonus() -> None:
    ours = made({"a": [(2.0, 1.0)]})[2]["rows"][1]
    assert ours["mean_acceptance_length"] == round(1 + 7 / 3, 4)
    assert ours["tokens_per_round"] == round(10 / 3, 4)
    assert ours["acceptance_histogram"] == [0, 0, 2, 1]
    assert ours["acceptance_survival_by_depth"] == [1.0, 1.0, 0.3333]
    assert ours["stage_shares"]["verify"] == 0.75
    assert ours["acceptance_by_context"] == [
        {"from": 64, "steps": 3, "mean_acceptance_length": round(1 + 7 / 3, 4)}
    ]
    assert ours["nodes_per_step"] == 8.0


def test_averages_weigh_data_sets_alike() -> None:
    _, _, report = made({"a": [(2.0, 1.0)] * 3, "b": [(4.0, 1.0)]})
    ours = report["averages"][1]
    assert (ours["datasets"], ours["speedup"]) == (2, 3.0)
    assert ours["acceptance_survival_by_depth"] == [1.0, 1.0, 0.3333]
    assert report["best"][0]["flags"] == "--method dartree --budget 8"


def test_plain_decoding_is_best_where_nothing_beats_it() -> None:
    _, _, report = made({"a": [(1.0, 2.0)]})
    assert report["best"][0]["flags"] == "--method ar"


def test_flags_are_those_of_the_command_line() -> None:
    found = variants(["dartree"], {"depth_bonus": [-0.2], "coupled": [False], "block_size": [6]})
    assert flags(found[1]) == (
        "--method dartree --budget auto --block-size 6 --depth-bonus -0.2 --no-coupled --no-graft"
    )
    grafted = variants(["ddtree"], {"graft": [True]})
    assert flags(grafted[1]) == "--method ddtree --budget auto --graft"
    assert flags(variants(["ddtree"], {"budget": [16]})[1]) == "--method ddtree --budget 16"
    # `run` would size a chain's rounds by what pays, and the bench drafts whole blocks.
    assert flags(variants(["domino"], {})[1]) == "--method domino --budget 64"


def test_failures_and_differences_are_counted_and_listed() -> None:
    def diverged(real: bool | None) -> dict[str, Any]:
        place = {"turn": 0, "index": 3, "token": 1, "expected": 2, "margin": 0.5, "real": real}
        return {"identical": False, "divergence": place}

    changes = {
        "a/0": {"turns": [], "error": "out of memory", "identical": None},
        "a/1": diverged(False),
        "a/2": diverged(True),
        "a/3": diverged(None),
    }
    _, _, report = made({"a": [(2.0, 1.0)] * 5}, **changes)
    ours = report["rows"][1]
    assert (ours["prompts"], ours["failed"], ours["compared"]) == (4, 1, 4)
    assert ours["identical"] == 0.25
    found = [ours[f"differ_{how}"] for how in ("by_rounding", "really", "in_length")]
    assert found == [1, 1, 1]
    assert [f["error"] for f in report["failures"]] == ["out of memory"]
    assert [d["row"] for d in report["differences"]] == ["1", "2", "3"]
    assert report["rows"][0]["prompts"] == 5
    text = shown(report)
    assert "out of memory" in text
    assert "3 outputs differ from AR's, 1 of them by more than rounding" in text


def test_answers_of_one_token_have_no_speed() -> None:
    plan, cases, _ = made({"a": [(2.0, 1.0)]})
    for sample in cases[0].samples:
        sample.turns = [turn(0.0, tokens=1)]
    report = build(plan, cases, environment=ENVIRONMENT, sources={"a": ""}, missing={})
    assert [row["speedup"] for row in report["rows"]] == [None, None]
    assert report["best"] == []
    assert "–" in shown(report)
    to_html(report)


def test_a_run_without_cases_still_has_a_report() -> None:
    plan, _, _ = made({"a": [(2.0, 1.0)]})
    report = build(
        plan, [], environment=ENVIRONMENT, sources={"a": ""}, missing={}, ended="interrupted"
    )
    assert (report["rows"], report["complete"], report["ended"]) == ([], False, "interrupted")
    assert "after 0 of 1" in shown(report)
    assert "after 0 of 1" in to_html(report)
    assert to_csv(report).strip() == ""


def shown(report: dict[str, Any], width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(render(report, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_tau_and_speedup_of_every_data_set_and_fits() -> None:
    names = ["gsm8k", "math500", "humaneval", "mt-bench", "alpaca"]
    _, _, report = made({name: [(2.0, 1.0)] for name in names})
    for width in (60, 80, 200):
        text = shown(report, width)
        assert all(name in text for name in [*names, "average"])
        assert text.count("3.33 · 2.00×") == 6
        assert max(map(len, text.splitlines())) <= width
    assert "--method dartree --budget 8" in shown(report).replace("\n", " ")


def test_no_figure_is_cut_on_a_narrow_terminal() -> None:
    _, _, report = made({"livecodebench": [(2.0, 1.0)]})
    ours = report["rows"][1] | {"variant": "dartree-fixed B=auto", "failed": 3, "quality": 0.25}
    report["rows"][1] = ours
    figures = ["3.33", "2.00×", "2.00–2.00×", f"{ours['speedup_with_prefill']:.2f}×", "25%"]
    figures += ["tok/s", "lowest", "quartiles", "+prefill", "as AR", "failed", "right"]
    for width, tables in ((60, 3), (80, 2), (200, 1)):
        text = shown(report, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert all(figure in text for figure in figures)
        assert text.count("data set       method") == tables


def test_csv_has_a_line_per_row() -> None:
    _, _, report = made({"a": [(2.0, 1.0)], "b": [(4.0, 1.0)]})
    found = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [(r["dataset"], r["method"], r["speedup"]) for r in found] == [
        ("a", "ar", "1.0"),
        ("a", "dartree", "2.0"),
        ("b", "ar", "1.0"),
        ("b", "dartree", "4.0"),
    ]
    assert "acceptance_histogram" not in found[0]


def test_comparisons_say_what_moved_and_what_else_changed(tmp_path: Path) -> None:
    old = made({"a": [(2.0, 1.0)], "gone": [(2.0, 1.0)]})[2]
    new = made({"a": [(3.0, 1.0)], "new": [(2.0, 1.0)]})[2]
    new["environment"] = ENVIRONMENT | {
        "versions": {"torch": "3"},
        "machine": {"processor": "P", "cpus": 2, "available": 9},
    }
    new["settings"] = old["settings"] | {"max_new_tokens": old["settings"]["max_new_tokens"] + 1}
    new["datasets"]["a"] = old["datasets"]["a"] | {"rows": 7}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    found = compare_reports(new, read_report(path))
    ours = next(r for r in found["rows"] if r["key"].startswith("dartree"))
    assert ours["speedup"] == {"old": 2.0, "new": 3.0, "ratio": 1.5}
    assert [line.partition(":")[0] for line in found["setup"]] == [
        *("versions.torch", "settings.max_new_tokens", "datasets.a.rows")
    ]
    assert found["setup"][0] == "versions.torch: 2 then, 3 now"
    assert all("gone" in key for key in found["only_old"])
    assert all("new" in key for key in found["only_new"])
    console = Console(width=100, file=io.StringIO())
    console.print(render_comparison(found, "old.json"))
    assert isinstance(console.file, io.StringIO)
    assert "2.00 → 3.00 +50%" in console.file.getvalue()


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}', '{"rows": [], "format": 99}'])
def test_other_files_are_no_reports(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        read_report(path)


def test_figures_of_a_real_run_are_those_of_its_events(make: Make, decoder: Decoder) -> None:
    bench = make(["dartree", "domino"], {"budget": [4, "auto"]})
    cases = bench.run()
    report = build(
        bench.plan,
        cases,
        environment=environment(decoder, {}, "dartree bench"),
        sources={"ids": "here"},
        missing={},
    )
    assert json.loads(json.dumps(report)) == report
    assert report["complete"]
    assert report["environment"]["pass_ms_by_rows"]["1"] > 0
    row = next(r for r in report["rows"] if r["key"] == "dartree budget=4")
    config = bench.plan.variants[1].config(bench.plan.base, 0.0)
    assert config.tree.budget == 4
    whole = RunningMetrics()
    for unit in bench.plan.datasets["ids"]:
        for event in decoder.stream(list(unit.prompt_ids), config):
            whole.update(event)
    expected = whole.summary()
    for name in (
        *("mean_acceptance_length", "acceptance_histogram", "num_spec_steps", "num_plain_steps"),
        *("acceptance_survival_by_depth", "acceptance_conditional_by_depth"),
        "draft_acceptance_rate",
    ):
        assert row[name] == expected[name], name
    assert row["nodes_per_step"] == round(
        expected["num_tree_nodes"] / expected["num_spec_steps"], 4
    )
    by_context = row["acceptance_by_context"]
    assert sum(cell["steps"] for cell in by_context) == expected["num_spec_steps"]


def test_metrics_of_a_turn_come_back_from_its_summary() -> None:
    decoder = tiny.trained("tied")
    turns = []
    for prompt in ([5, 17, 3], [40, 2]):
        turns.append(RunningMetrics())
        for event in decoder.stream(prompt, DecodeConfig(max_new_tokens=30)):
            turns[-1].update(event)
    kept = [RunningMetrics.of_turn(json.loads(json.dumps(m.summary()))) for m in turns]
    for ours, theirs in [*zip(kept, turns, strict=True), (aggregate(kept), aggregate(turns))]:
        found, expected = ours.summary(), theirs.summary()
        # Means come from totals that were rounded once before.
        means = found.pop("stage_ms_mean"), expected.pop("stage_ms_mean")
        assert means[0] == pytest.approx(means[1], abs=2e-4)
        for name in ("tokens_per_second", "tokens_per_second_with_prefill", "decode_s"):
            assert found.pop(name) == pytest.approx(expected.pop(name), rel=1e-3)
        totals = found.pop("stage_ms_total"), expected.pop("stage_ms_total")
        assert totals[0] == pytest.approx(totals[1], abs=2e-4)
        assert found == expected


def test_the_page_is_whole_escaped_and_shows_every_chart() -> None:
    data = [Row(str(i), ("q",)) for i in range(2)]
    plan = Plan(
        variants(["ddtree", "dartree"], {"budget": [4, 16, "auto"], "width": [2, 4]}),
        {"<set>": data},
        [0.0],
        DecodeConfig(),
    )
    cases = [
        Case(
            "<set>",
            row.id,
            0.0,
            [
                Sample(v.key, [turn(1 + 0.1 * i, accepted=[1, i % 3] if i else [])], identical=True)
                for i, v in enumerate(plan.variants)
            ],
        )
        for row in data
    ]
    report = build(plan, cases, environment=ENVIRONMENT, sources={"<set>": "f"}, missing={})
    html = to_html(report)
    assert html.count("<figure>") == 6
    assert "<set>" not in html
    assert "&lt;set&gt;" in html
    assert "dartree bench &lt;now&gt;" in html
    assert "http" not in html
    body = html[html.index("<body>") : html.index("</html>")].replace("<br>", "<br/>")
    root = ElementTree.fromstring(body)
    charts = root.findall(".//figure/svg")
    assert len(charts) == 6
    # Budget charts: ddtree, and dartree at two widths, each at three budgets.
    assert len(charts[0].findall(".//polyline")) == 3
    assert [len((p.get("points") or "").split()) for p in charts[0].iter("polyline")] == [3, 3, 3]
    for chart in charts:
        box = (chart.get("viewBox") or "").split()
        for place in [*chart.iter("circle"), *chart.iter("rect")]:
            x = float(place.get("cx") or place.get("x") or 0)
            y = float(place.get("cy") or place.get("y") or 0)
            assert 0 <= x <= float(box[2])
            assert 0 <= y <= float(box[3])


@given(st.floats(1e-6, 1e9))
def test_ticks_are_round_and_reach_over_the_largest_value(largest: float) -> None:
    ticks = nice_ticks(largest)
    assert ticks[0] == 0
    assert ticks[-1] >= largest * (1 - 1e-6) or ticks[-1] == pytest.approx(largest, abs=1e-9)
    assert 2 <= len(ticks) <= 7


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30))
def test_quartiles_are_numpys(values: list[float]) -> None:
    assert quartiles(values) == pytest.approx(
        tuple(np.quantile(values, [0.25, 0.5, 0.75])), abs=1e-3
    )
    assert quartiles([None, *values]) == quartiles(values)
    assert quartiles([]) == (None, None, None)


def test_text_of_turns_is_not_in_the_report(make: Make) -> None:
    _, cases, report = made({"a": [(2.0, 1.0)]})
    cases[0].samples[0].turns[0] = replace(cases[0].samples[0].turns[0], text="a private answer")
    assert "private" not in json.dumps(report)
