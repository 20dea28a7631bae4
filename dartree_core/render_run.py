"""A run's figures as rich renderables: speed, acceptance, stages, turns, and the worst rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from dartree_core.config import DecodeConfig
from dartree_core.events import RunStarted
from dartree_core.glyphs import FATE_WORDS, show_text
from dartree_core.render import ShowToken
from dartree_core.summary import RoundRow, RunSummary, TurnSummary

_ALWAYS = ("temperature", "seed")
"""Settings that say something at 0 too."""

_DEPTHS = (
    "survival: of all steps, those that accepted this many or more; "
    "conditional: of those that accepted one less and drafted this deep"
)


def render_run(run: RunSummary, show: ShowToken, *, ascii_only: bool = False) -> Group:
    """A whole run: what decoded what, its turns, their figures together, the worst rounds."""
    parts: list[RenderableType] = [*_header(run.header)]
    if run.turns:
        parts += [Text(), _turn_table(run.turns, ascii_only), Text()]
        parts.append(render_metrics(run.metrics.summary(), ascii_only=ascii_only))
    if run.calibrated is not None:
        parts.append(_baseline(run))
    if run.worst:
        parts += [Text(), _worst_table(run.worst, show, ascii_only)]
    if run.failure is not None:
        failure = f"{run.failure.message} {run.failure.remedy}".strip()
        parts.append(Text(f"\nfailed: {show_text(failure)}", "bold red"))
    return Group(*parts)


def _header(header: RunStarted) -> list[Text]:
    def name(model: Mapping[str, Any]) -> str:
        words = [str(model.get("name") or "?"), str(model.get("revision") or "")]
        return " @ ".join(w for w in words if w)

    lines = [
        ("target", name(header.target)),
        ("drafter", name(header.drafter) if header.drafter else "none"),
        ("bundle", header.bundle),
        ("device", f"{header.device} {header.dtype}".strip()),
        ("settings", _settings(header.config)),
        ("recorded", f"{header.created}  schema {header.schema}".strip()),
        ("versions", "  ".join(f"{k} {v}" for k, v in header.versions.items())),
        *(("note", note) for note in header.notes),
    ]
    return [
        Text.assemble((f"{label:<9}", "dim"), show_text(value)) for label, value in lines if value
    ]


def _settings(config: Mapping[str, Any]) -> str:
    """The settings by their flat names on one line, without those that are off as by default."""
    flat, usual = _flat(config), _flat(DecodeConfig().to_dict())
    shown = {
        k: v for k, v in flat.items() if v or k in _ALWAYS or v not in (None, (), [], usual.get(k))
    }
    return "  ".join(f"{k}={v}" for k, v in shown.items())


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(value if isinstance(value, Mapping) else {key: value})
    return flat


def _plain_table(*columns: str) -> Table:
    """A table without lines; a column named `<x` is text, others are numbers, and only the last
    one gives way where the terminal is narrow."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(columns, start=1):
        side: JustifyMethod = "left" if name.startswith("<") else "right"
        table.add_column(name.lstrip("<"), justify=side, no_wrap=i < len(columns))
    return table


def _turn_table(turns: list[TurnSummary], ascii_only: bool) -> Table:
    table = _plain_table(
        "turn", "<end", "tokens", "rounds", "acceptance", "tok/s", "ttft s", "<prompt"
    )
    for turn in turns:
        figures = turn.metrics.summary()
        prompt = Text(show_text(turn.prompt), no_wrap=True, overflow=_overflow(ascii_only))
        table.add_row(
            str(turn.turn),
            turn.reason or "unfinished",
            str(figures["num_emitted_tokens"]),
            str(figures["num_spec_steps"] + figures["num_plain_steps"]),
            _or_dash(figures["mean_acceptance_length"], ".2f"),
            _or_dash(figures["tokens_per_second"], ".1f"),
            _or_dash(figures["ttft_s"], ".3f"),
            prompt,
        )
    return table


def _baseline(run: RunSummary) -> Text:
    assert run.calibrated is not None
    plain = run.calibrated.tokens_per_second
    ours = run.metrics.summary()["tokens_per_second"]
    text = Text(f"plain decoding {plain:.1f} tok/s, measured on this target")
    if ours is not None and plain > 0:
        speedup = ours / plain
        text.append(f": {speedup:.2f} times as fast", "bold" if speedup >= 1 else "bold red")
    return text


def _worst_table(rows: list[RoundRow], show: ShowToken, ascii_only: bool) -> Table:
    table = _plain_table(
        "turn", "round", "accepted", "of depth", "nodes", "ms", "<bonus", "<the tree lacked it:"
    )
    table.title, table.title_justify, table.title_style = "worst rounds", "left", "bold"
    for row in rows:
        cells = [row.turn, row.round, row.accepted, row.height, row.nodes, f"{row.ms:.1f}"]
        bonus = "" if row.bonus is None else show(row.bonus)
        why = FATE_WORDS[row.bonus_fate] if row.bonus_fate else "the turn ended"
        shown = Text(why, no_wrap=True, overflow=_overflow(ascii_only))
        table.add_row(*map(str, cells), Text(bonus, no_wrap=True), shown)
    return table


def _overflow(ascii_only: bool) -> Any:
    return "crop" if ascii_only else "ellipsis"


def render_metrics(figures: Mapping[str, Any], *, ascii_only: bool = False) -> Group:
    """The figures of `RunningMetrics.summary`: speed, acceptance, stages, and what was missed."""
    parts: list[RenderableType] = [_speed(figures)]
    if figures["num_spec_steps"]:
        parts += [_acceptance_lines(figures), Text(), _acceptance_table(figures, ascii_only)]
        parts += [Text(_DEPTHS, "dim"), Text(), *_missed(figures)]
    parts += [Text(), _stage_table(figures, ascii_only)]
    return Group(*parts)


def _speed(figures: Mapping[str, Any]) -> Text:
    return Text(
        f"{figures['num_emitted_tokens']} tokens  "
        f"{_or_dash(figures['tokens_per_second'], '.1f')} tok/s decoding, "
        f"{_or_dash(figures['tokens_per_second_with_prefill'], '.1f')} with prefill  "
        f"first token after {_or_dash(figures['ttft_s'], '.3f')} s"
    )


def _acceptance_lines(figures: Mapping[str, Any]) -> Text:
    rate = figures["draft_acceptance_rate"]
    mean = _or_dash(figures["mean_acceptance_length"], ".2f")
    return Text.assemble(
        (f"acceptance length {mean}", "bold"),
        " (1 + accepted draft tokens per step: the bonus token counts)  "
        f"draft acceptance rate {_or_dash(rate, '.1%')} (the bonus token left out)\n"
        f"{figures['num_spec_steps']} steps, {figures['num_plain_steps']} without a draft  "
        f"{figures['num_tree_nodes']} nodes verified of {figures['num_supertree_nodes']}  "
        f"tree depth {_or_dash(figures['tree_depth']['mean'], '.2f')} mean, "
        f"{figures['tree_depth']['max']} most",
    )


def _acceptance_table(figures: Mapping[str, Any], ascii_only: bool) -> Table:
    table = _plain_table("accepted", "steps", "survival", "conditional", "<")
    histogram = figures["acceptance_histogram"]
    survival = [None, *figures["acceptance_survival_by_depth"]]
    conditional = [None, *figures["acceptance_conditional_by_depth"]]
    for accepted, steps in enumerate(histogram):
        table.add_row(
            str(accepted),
            str(steps),
            "" if accepted == 0 else _or_dash(survival[accepted], ".1%"),
            "" if accepted == 0 else _or_dash(conditional[accepted], ".1%"),
            _bar(steps / max(histogram), ascii_only),
        )
    return table


def _missed(figures: Mapping[str, Any]) -> list[Text]:
    fates = figures["bonus_fates"]
    count = sum(fates.values())
    lines = [Text(f"why the tree lacked the bonus token ({count} steps)", "dim")] if count else []
    for fate, n in sorted(fates.items(), key=lambda item: -item[1]):
        lines.append(Text(f"{n / count:>6.1%}  {fate}: {FATE_WORDS[fate]}"))
    return lines


def _stage_table(figures: Mapping[str, Any], ascii_only: bool) -> Table:
    table = _plain_table("<stage", "ms a round", "s in all", "<")
    totals = figures["stage_ms_total"]
    whole = sum(totals.values())
    for stage, ms in totals.items():
        share = ms / whole if whole else 0.0
        mean = _or_dash(figures["stage_ms_mean"][stage], ".2f")
        name = Text(show_text(stage))
        table.add_row(name, mean, f"{ms / 1e3:.2f}", f"{_bar(share, ascii_only)} {share:.0%}")
    return table


def _bar(share: float, ascii_only: bool, cells: int = 24) -> str:
    """A bar of up to `cells` cells; anything above nothing shows."""
    return ("#" if ascii_only else "▇") * math.ceil(share * cells)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
