"""The report as one HTML file that needs nothing else: tables, charts, and the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dartree_core.bench.report import AVERAGE
from dartree_core.bench.svg import Bar, Line, bar_chart, line_chart
from dartree_core.bench.table import notes, number, times
from dartree_core.events import STAGES

_STYLE_FILE = Path(__file__).with_name("page.css")
_BY_BUDGET = (
    ("Speedup by budget", "speedup", "speedup over AR", 1.0),
    ("Acceptance length by budget", "mean_acceptance_length", "acceptance length τ", None),
)
"""Title, figure, axis, and where plain decoding stands."""


def to_html(report: Mapping[str, Any]) -> str:
    """The page.

    Args:
        report: As built by `report.build`.
    """
    environment = report["environment"]
    target = environment["target"].get("name") or "a model"
    body = "".join(
        [
            f"<h1>Speculative decoding on {escape(str(target))}</h1>",
            f'<p class="dim">{escape(_subtitle(environment))}</p>',
            *_messages(report),
            *(part for t in report["settings"]["temperatures"] for part in _temperature(report, t)),
            "<h2>Machine and settings</h2>",
            _facts(report),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>dartree bench: {escape(str(target))}</title>"
        f"<style>{_STYLE_FILE.read_text('utf-8')}{_series_style()}</style></head><body>{body}</body></html>\n"
    )


def _series_style() -> str:
    rules = []
    for i in range(8):
        rules.append(f".s{i}{{stroke:var(--c{i});fill:var(--c{i})}}.f{i}{{fill:var(--c{i})}}")
        if i >= 4:
            rules.append(f".s{i} polyline{{stroke-dasharray:7 4}}")
    return "".join(rules)


def _subtitle(environment: Mapping[str, Any]) -> str:
    drafter = environment["drafter"].get("name")
    parts = [
        f"drafter {drafter}" if drafter else "no drafter",
        f"{environment['device']}, {environment['dtype']}",
        str(environment["machine"].get("processor", "")),
        environment["created"],
    ]
    return " · ".join(filter(None, parts))


def _messages(report: Mapping[str, Any]) -> Iterator[str]:
    for found in report["best"]:
        yield (
            f'<p class="best">Best here at temperature {found["temperature"]:g}: '
            f"{escape(found['variant'])}, {times(found['speedup'])} — "
            f"<code>dartree run {escape(found['flags'])}</code></p>"
        )
    for note in notes(report):
        yield f'<p class="warn">{escape(note)}</p>'


def _temperature(report: Mapping[str, Any], temperature: float) -> Iterator[str]:
    rows = [r for r in report["rows"] if r["temperature"] == temperature]
    means = [a for a in report["averages"] if a["temperature"] == temperature]
    if not rows:
        return
    yield f"<h2>Temperature {temperature:g}</h2>"
    yield (
        "<p>τ is the mean acceptance length: tokens a drafting round emits, the bonus token "
        "included. Speedups are medians over prompts against plain decoding (AR) measured beside "
        "them in the same run through the same code, prefill left out; quartiles in brackets.</p>"
    )
    yield _table(rows, means)
    yield f'<div class="charts">{"".join(_charts(means))}</div>'


def _table(rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    cells = {(row["dataset"], row["key"]): row for row in rows}
    columns = [*names, AVERAGE] if len(names) > 1 else names
    cells |= {(AVERAGE, mean["key"]): mean for mean in means}
    heads = "".join(f"<th>{escape(n)}<br><small>τ · speedup</small></th>" for n in columns)
    top = {
        name: max(
            (c["speedup"] or 0.0 for m in means if (c := cells.get((name, m["key"])))), default=0.0
        )
        for name in columns
    }
    lines = []
    for mean in means:
        found = [cells.get((name, mean["key"])) for name in columns]
        own = "".join(_cell(f, top[name]) for name, f in zip(columns, found, strict=True))
        same = "–" if mean["identical"] is None else f"{mean['identical']:.0%}"
        lines.append(f"<tr><td>{escape(mean['variant'])}</td>{own}<td>{same}</td></tr>")
    return (
        f'<div class="scroll"><table><thead><tr><th>method</th>{heads}<th>same as AR</th></tr>'
        f"</thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(figures: Mapping[str, Any] | None, top: float) -> str:
    if figures is None or figures["mean_acceptance_length"] is None:
        return "<td>–</td>"
    style = ' class="top"' if figures["speedup"] is not None and figures["speedup"] >= top else ""
    spread = (
        f" <small>({number(figures['speedup_q1'])}–{number(figures['speedup_q3'])})</small>"
        if figures.get("speedup_q1") is not None
        else ""
    )
    tau = number(figures["mean_acceptance_length"])
    return f"<td{style}>{tau} · {times(figures['speedup'])}{spread}</td>"


def _charts(means: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _budget_charts(means)
    chosen = _one_each(means)
    style = {method: i for i, method in enumerate(dict.fromkeys(m["method"] for m in means))}
    for title, key, label in (
        (
            "Acceptance by depth, conditional",
            "acceptance_conditional_by_depth",
            "accepted here, given the depth before",
        ),
        (
            "Acceptance by depth, survival",
            "acceptance_survival_by_depth",
            "rounds that accepted this deep",
        ),
    ):
        lines = [
            Line(
                m["variant"],
                [(i, v) for i, v in enumerate(m[key], 1) if v is not None],
                style[m["method"]],
            )
            for m in chosen
            if m[key]
        ]
        if lines:
            yield _figure(title, line_chart(lines, x_label="depth", y_label=label, top=1.0))
    bars = [
        Bar(m["variant"], shares, f"{sum(filter(None, m['stage_ms_mean'].values())):.1f} ms")
        for m in chosen
        if (shares := {k: v for k, v in m["stage_shares"].items() if v})
    ]
    if bars:
        yield _figure("Where a round's time goes", bar_chart(bars, order=STAGES, label="shares"))
    edges = sorted({c["from"] for m in chosen for c in m["acceptance_by_context"]})
    lines = [
        Line(
            m["variant"],
            [
                (float(edges.index(c["from"])), c["mean_acceptance_length"])
                for c in m["acceptance_by_context"]
            ],
            style[m["method"]],
        )
        for m in chosen
        if m["acceptance_by_context"]
    ]
    if lines:
        names = {float(i): f"{edge}+" for i, edge in enumerate(edges)}
        chart = line_chart(
            lines,
            x_label="tokens of context before the round",
            y_label="acceptance length τ",
            x_names=names,
        )
        yield _figure("Acceptance length τ by context length", chart)


def _budget_charts(means: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    budgets = sorted(
        {m["budget"] for m in means if m["budget"] is not None},
        key=lambda b: (b == "auto", 0 if b == "auto" else b),
    )
    if len(budgets) < 2:
        return
    names = {float(i): str(budget) for i, budget in enumerate(budgets)}
    series: dict[str, list[Mapping[str, Any]]] = {}
    for m in means:
        if m["budget"] is not None:
            series.setdefault(_without_budget(m), []).append(m)
    for title, key, label, baseline in _BY_BUDGET:
        lines = [
            Line(
                name,
                sorted(
                    (float(budgets.index(m["budget"])), m[key]) for m in group if m[key] is not None
                ),
                style,
            )
            for style, (name, group) in enumerate(series.items())
        ]
        chart = line_chart(
            lines, x_label="budget B", y_label=label, x_names=names, baseline=baseline
        )
        yield _figure(title, chart)


def _without_budget(figures: Mapping[str, Any]) -> str:
    words = str(figures["variant"]).split()
    return " ".join(word for word in words if not word.startswith("B="))


def _one_each(means: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Every method once, with its fastest setting: more lines could not be told apart."""
    found: dict[str, Mapping[str, Any]] = {}
    for m in means:
        known = found.get(m["method"])
        if known is None or (m["speedup"] or 0.0) > (known["speedup"] or 0.0):
            found[m["method"]] = m
    return list(found.values())


def _figure(title: str, chart: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{chart}</figure>"


def _facts(report: Mapping[str, Any]) -> str:
    environment, settings = report["environment"], report["settings"]
    machine = environment["machine"]
    datasets = ", ".join(
        f"{name} ({found['rows']} of {found['source']})"
        for name, found in report["datasets"].items()
    )
    facts = {
        "command": environment["command"],
        "target": _named(environment["target"]),
        "drafter": _named(environment["drafter"]),
        "device": f"{environment['device']}, weights {environment['dtype']}, "
        f"activations {environment['activation_dtype']}, {environment['threads']} threads",
        "processor": f"{machine.get('processor')}, {machine.get('cpus')} CPUs",
        "system": environment["system"],
        "load before, after": f"{environment['load_average']}, "
        f"{environment.get('load_average_after')}",
        "versions": ", ".join(f"{k} {v}" for k, v in environment["versions"].items()),
        "data sets": datasets,
        "answers": f"at most {settings['max_new_tokens']} tokens, seed "
        f"{settings['sampling']['seed']}",
        "cases": f"{report['cases']} of {report['cases_planned']}",
    }
    lines = "".join(
        f"<tr><td>{escape(k)}</td><td>{escape(str(v))}</td></tr>" for k, v in facts.items()
    )
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def _named(model: Mapping[str, Any]) -> str:
    if not model:
        return "none"
    kept = ("name", "revision", "layers", "hidden_size", "head", "block_size")
    return ", ".join(f"{k} {model[k]}" for k in kept if model.get(k) not in (None, ""))
