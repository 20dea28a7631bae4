from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from dartree_core.config import DecodeConfig
from dartree_core.events import Calibrated, Event, RunFailed, RunStarted, TurnStarted
from dartree_core.metrics import RunningMetrics
from dartree_core.render import render_round, token_shower
from dartree_core.render_run import render_metrics, render_run
from dartree_core.summary import RunSummary
from tests.core.strategies import VOCAB_SIZE, runs, token_text
from tests.core.test_metrics import PREFILL, round_done
from tests.core.test_summary import summed

SHOW = token_shower({i: token_text(i) for i in range(VOCAB_SIZE)})


def plain(renderable: RenderableType, width: int = 160) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def figures(*events: Event) -> dict[str, Any]:
    metrics = RunningMetrics()
    for event in events:
        metrics.update(event)
    return metrics.summary()


def test_figures_say_what_they_count() -> None:
    text = plain(
        render_metrics(
            figures(
                PREFILL,
                round_done(4, 2, pruned=3),
                round_done(4, 4, fate="not_expanded"),
                round_done(2, 0),
                round_done(0, 0),
            )
        )
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "acceptance length 3.00 (1 + accepted draft tokens per step: the bonus token" in text
    assert "draft acceptance rate 60.0% (the bonus token left out)" in text
    assert "3 steps, 1 without a draft 10 nodes verified of 13" in lines[2]
    bar = "▇" * 24
    assert f"2 1 66.7% 100.0% {bar}" in lines
    assert "3 0 33.3% 50.0%" in lines
    assert "66.7% not_proposed: it was not among the candidates for its place" in lines
    assert f"verify 20.00 0.08 {'▇' * 16} 67%" in lines


def test_plain_decoding_shows_no_acceptance() -> None:
    text = plain(render_metrics(figures(PREFILL, round_done(0, 0))))
    assert "tok/s" in text
    assert "acceptance" not in text


def test_nothing_decoded_yet() -> None:
    text = plain(render_metrics(figures()))
    assert "0 tokens  - tok/s decoding, - with prefill  first token after - s" in text


def header(**changes: Any) -> RunStarted:
    return replace(
        RunStarted(
            created="2026-01-01T00:00:00Z",
            bundle="demo",
            target={"name": "SmolLM2", "revision": "abc"},
            device="cpu",
            dtype="float32",
            versions={"torch": "2.13"},
            config=DecodeConfig(stop=("END",)).to_dict(),
        ),
        **changes,
    )


def test_a_run_names_its_models_and_settings() -> None:
    text = plain(render_run(summed([header()]), SHOW))
    assert "target   SmolLM2 @ abc" in text
    assert "drafter  none" in text
    assert "device   cpu float32" in text
    assert "method=dartree  budget=64  width=12" in text
    assert "stop=('END',)" in text


def test_settings_that_are_off_are_told_where_they_usually_are_on() -> None:
    config = DecodeConfig().with_changes(depth_bonus=0, coupled=False, top_k=40)
    line = plain(render_run(summed([header(config=config.to_dict())]), SHOW), width=400)
    for told in ("depth_bonus=0.0", "coupled=False", "temperature=0.0", "seed=0", "top_k=40"):
        assert told in line
    for usual in ("graft", "ignore_eos", "min_p", "block_size", "stop"):
        assert usual not in line
    later = plain(render_run(summed([header(config={"method": "ar", "speed": 0})]), SHOW))
    assert "method=ar  speed=0" in later


def test_what_users_typed_cannot_steer_the_terminal() -> None:
    events: list[Event] = [
        header(bundle="\x1b[2J"),
        TurnStarted(0, "[red]hi[/red]\n\x1b]0;title\x07", (), "raw", {}),
        RunFailed("bad \x1b[31m", "good"),
    ]
    text = plain(render_run(summed(events), SHOW))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]hi[/red]↵␛]0;title␇" in text
    assert "failed: bad ␛[31m good" in text


def test_names_of_stages_are_shown_as_they_are() -> None:
    ms: Any = {"verify": 2.0, "[red]\x1b[2J": 1.0}
    done = replace(round_done(2, 1), ms=ms)
    for text in (plain(render_metrics(figures(PREFILL, done))), plain(render_round(done, SHOW))):
        assert "[red]␛[2J" in text
        assert "\x1b" not in text


def test_speed_is_compared_with_plain_decoding_where_measured() -> None:
    events: list[Event] = [header(), PREFILL, round_done(4, 2), Calibrated("ar", 50.0, 24, 0.48)]
    text = plain(render_run(summed(events), SHOW))
    # 3 tokens in 30 ms are 100 a second.
    assert "plain decoding 50.0 tok/s, measured on this target: 2.00 times as fast" in text
    assert "plain decoding" not in plain(render_run(summed(events[:-1]), SHOW))


@given(runs(), st.integers(40, 200), st.booleans())
def test_any_run_fits_any_terminal(events: list[Event], width: int, ascii_only: bool) -> None:
    run = RunSummary()
    for event in events:
        run.update(event)
    show = (lambda token: f"t{token}") if ascii_only else SHOW
    text = plain(render_run(run, show, ascii_only=ascii_only), width)
    for line in text.splitlines():
        assert cell_len(line) <= width
    for turn in run.turns if width >= 80 else ():
        assert turn.reason in text
