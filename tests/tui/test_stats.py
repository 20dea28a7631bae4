from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from dartree_core.events import PrefillDone, RoundDone
from dartree_core.metrics import RunningMetrics
from dartree_tui.widgets.stats import StatsPanel, _shares, report
from dartree_tui.widgets.stats_data import Stats, stats_of
from tests.core.strategies import runs
from tests.tui.samples import Stage, make_round, plain_round
from tests.tui.snapshots import screen_text
from tests.tui.test_inspector import palette_of_default  # noqa: F401 - a fixture

SPEEDS = tuple(60 + 30 * math.sin(i / 3) for i in range(40))


def gather(rounds, **options):
    metrics = RunningMetrics()
    metrics.update(PrefillDone(0, 8, 0, 0.1, 0.41, 10, " the", (0, 4)))
    for done in rounds:
        metrics.update(done)
    return stats_of(metrics.summary(), rounds[-1] if rounds else None, **options)


ROUNDS = [
    make_round(number=0),
    make_round(number=1, accepted=(0, 1)),
    make_round(number=2, accepted=(0,)),
    make_round(number=3),
]


def test_numbers_come_from_the_metrics_and_the_newest_round():
    stats = gather(ROUNDS, now=91.0, speeds=SPEEDS, baseline=31.0)
    assert stats.rounds == 4
    assert stats.tau == pytest.approx((5 + 2 + 1 + 5) / 4)
    assert stats.histogram == (1, 1, 0, 0, 2)
    assert stats.survival == pytest.approx((0.75, 0.5, 0.5, 0.5))
    assert stats.conditional == pytest.approx((0.75, 2 / 3, 1.0, 1.0), abs=1e-3)
    assert stats.average == pytest.approx(13 / (4 * 0.0242), rel=1e-3)
    assert stats.speedup == pytest.approx(stats.average / 31)
    assert (stats.accepted_now, stats.kv_length, stats.ttft) == (4, 120, 0.41)
    assert (stats.built, stats.verified, stats.height, stats.budget) == (14, 11, 4, 11)


@pytest.mark.parametrize(
    ("rounds", "options", "verdict", "reason"),
    [
        (ROUNDS, {"baseline": 31.0}, "pays", "as long as 0.8 plain tokens and yields 3.2"),
        (ROUNDS, {"baseline": 500.0}, "not paying", "as long as 12.1 plain tokens and yields 3.2"),
        (ROUNDS, {}, "on", ""),
        ([*ROUNDS, plain_round()], {"baseline": 31.0}, "off", "no tree pays here"),
        ([plain_round("")], {}, "off", "the newest round drafted nothing"),
        ([plain_round("")], {"method": "ar"}, "off", "method ar decodes one token a pass"),
    ],
)
def test_whether_speculation_pays_and_why(rounds, options, verdict, reason):
    stats = gather(rounds, **options)
    assert stats.speculation == verdict
    assert reason in stats.reason
    assert bool(reason) == bool(stats.reason)


def test_the_reason_agrees_with_the_speedup_where_plain_rounds_are_mixed_in():
    slow = {"draft": 40.0, "verify": 60.0}
    spec = [replace(r, ms=slow) for r in ROUNDS[1:3] * 2]  # 6 tokens in 400 ms
    plain = [replace(plain_round(), ms={"verify": 20.0}) for _ in range(16)]  # 16 in 320 ms
    stats = gather([*plain, *spec], baseline=40.0)
    assert stats.speculation == "not paying"
    assert stats.speedup == pytest.approx(22 / 0.72 / 40, rel=1e-3)
    assert "as long as 1.4 plain tokens and yields 1.1" in stats.reason
    assert stats.tau == 1.5


def test_what_the_end_of_an_answer_cut_off_was_not_accepted():
    done = replace(make_round(), tokens=(11, 14), provenance=("draft", "draft"), bonus=None)
    stats = gather([done])
    assert (stats.accepted_now, stats.emitted_now) == (2, 2)
    full = gather([make_round()])
    assert (full.accepted_now, full.emitted_now) == (4, 5)


@pytest.mark.parametrize("size", [(60, 16), (60, 8), (34, 20), (34, 9)], ids=str)
async def test_layouts(size, snapshot):
    app = Stage(StatsPanel())
    async with app.run_test(size=size) as pilot:
        app.widget.show(gather(ROUNDS, now=91.0, speeds=SPEEDS, baseline=31.0))
        await pilot.pause()
        snapshot(app, f"stats_{size[0]}x{size[1]}")


async def test_before_anything_was_measured():
    app = Stage(StatsPanel())
    async with app.run_test(size=(60, 16)) as pilot:
        assert "No round yet" in screen_text(app)
        app.widget.show(gather(ROUNDS[:1]))
        await pilot.pause()
        text = screen_text(app)
        assert "not measured yet" in text
        assert "speculation on" in text
        assert "nan" not in text


async def test_when_it_does_not_pay_the_pane_says_so():
    app = Stage(StatsPanel())
    async with app.run_test(size=(60, 16)) as pilot:
        app.widget.show(gather(ROUNDS, baseline=500.0))
        await pilot.pause()
        assert "speculation does not pay: a round takes as long as" in " ".join(
            screen_text(app).split()
        )


@given(st.lists(st.floats(0, 50), min_size=1, max_size=5), st.integers(0, 60))
def test_stacked_bars_are_exactly_as_long_as_asked(values, cells):
    widths = _shares(values, cells)
    assert sum(widths) == (cells if sum(values) > 0 else 0)
    for value, width in zip(values, widths, strict=True):
        assert abs(width - (value / sum(values) * cells if sum(values) else 0)) < 1 + 1e-6


@settings(deadline=None)
@given(run=runs(), width=st.integers(28, 120), height=st.integers(3, 30))
def test_any_run_fits_its_pane(palette_of_default, run, width, height):  # noqa: F811
    metrics = RunningMetrics()
    last = None
    for event in run:
        metrics.update(event)
        last = event if isinstance(event, RoundDone) else last
    stats = stats_of(metrics.summary(), last)
    text = report(stats, width, height, palette_of_default).plain
    assert "nan" not in text
    body = text.split("\n")
    # The verdict is prose and may wrap; figures never do.
    for line in body[: next(i for i, t in enumerate(body) if t.startswith("speculation"))]:
        assert cell_len(line) <= width, line


def test_stats_without_rounds_have_no_speedup():
    assert math.isnan(Stats().speedup)
    assert replace(Stats(), average=62.0, baseline=31.0).speedup == 2


@pytest.mark.parametrize("ansi", [False, True])
async def test_no_color(ansi, monkeypatch, snapshot):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Stage(StatsPanel(), ansi_color=ansi)
    async with app.run_test(size=(60, 8)) as pilot:
        app.widget.show(gather(ROUNDS, now=91.0, speeds=SPEEDS, baseline=31.0))
        await pilot.pause()
        snapshot(app, "stats_60x8")
