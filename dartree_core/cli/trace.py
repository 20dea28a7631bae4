"""`dartree trace`: a recorded run in figures, or one of its trees."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, BinaryIO

import typer

from dartree_core.cli.output import print_json, stdout_console
from dartree_core.errors import ConfigError, TraceError
from dartree_core.events import STAGES, RoundDone, encode
from dartree_core.pieces import TokenText
from dartree_core.summary import RoundRow, RunSummary
from dartree_core.trace import TraceIndex, TraceReader, encode_vocab, token_ids
from dartree_core.tree import DraftTree

_NODE_COLUMNS = (
    *("turn", "round", "node", "text", "bytes"),
    *(f.name for f in fields(DraftTree)),
)
_ROUND_COLUMNS = (
    *(name for name in RoundRow._fields if name != "stages"),
    *("bonus_text", "bonus_bytes"),
    *(f"{stage}_ms" for stage in STAGES),
)


class TraceFormat(StrEnum):
    """How a trace is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def trace(
    file: Annotated[str, typer.Argument(help="Trace (.jsonl, .jsonl.gz), or - for stdin.")],
    round_number: Annotated[
        int | None,
        typer.Option("--round", "-r", min=0, help="Draw this round's tree; from 0, as recorded."),
    ] = None,
    turn: Annotated[
        int | None,
        typer.Option(
            "--turn", "-t", min=0, help="Only this turn; with --round the default is the first."
        ),
    ] = None,
    output: Annotated[TraceFormat, typer.Option("--format", help="How to print.")] = (
        TraceFormat.TEXT
    ),
    verified: Annotated[
        bool, typer.Option("--verified", help="Leave pruned nodes out of the tree.")
    ] = False,
    worst: Annotated[
        int, typer.Option("--worst", min=0, help="How many of the worst rounds to list.")
    ] = 5,
) -> None:
    """Show a recorded run: models, settings, acceptance, time, the rounds that went worst.

    With --round, show one round's draft tree: what was accepted, what was pruned, and why the
    tree lacked the token the target chose instead. JSON has one object, CSV one row a round, or
    with --round one row a node.
    """
    source = _source(file)
    if round_number is not None:
        with TraceIndex(source) as index:
            # A number would mean the last run that has it, where several were recorded.
            wanted = index.turns[0] if turn is None and index.turns else turn or 0
            done = index.round(wanted, round_number)
            _print_round(done, index.vocab, output, verified)
    elif output is TraceFormat.CSV:
        with TraceReader(source) as reader:
            _check_turn(turn, _write_rounds(reader, turn))
    else:
        with TraceReader(source) as reader:
            _print_run(reader, turn, worst, output)


def _source(file: str) -> str | BinaryIO:
    if file != "-":
        return file
    if sys.stdin is None or sys.stdin.isatty():  # it is None where closed
        raise ConfigError(
            "There is no trace on standard input.", "Pipe one in, or give a file's name."
        )
    return sys.stdin.buffer


def _check_turn(turn: int | None, found: bool) -> None:
    if turn is not None and not found:
        raise ConfigError(f"There is no turn {turn} in this trace.", "Look without --turn first.")


# One round


def _print_round(
    done: RoundDone, vocab: Mapping[int, TokenText], output: TraceFormat, verified: bool
) -> None:
    if output is TraceFormat.TEXT:
        from dartree_core.render import render_round, token_shower

        console = stdout_console()
        console.print(
            render_round(
                done,
                token_shower(vocab),
                verified_only=verified,
                ascii_only=console.options.ascii_only,
            )
        )
    elif output is TraceFormat.JSON:
        tokens = {i: vocab[i] for i in sorted(set(token_ids(done))) if i in vocab}
        print_json({**encode(done), "vocab": encode_vocab(tokens)["tokens"]})
    else:
        _write_csv(_NODE_COLUMNS, _node_rows(done, vocab, verified))


def _node_rows(
    done: RoundDone, vocab: Mapping[int, TokenText], verified: bool
) -> Iterator[dict[str, Any]]:
    tree = done.tree
    columns = tree.to_dict()
    for node in range(len(tree)):
        if verified and not tree.kept[node]:
            continue
        yield {
            "turn": done.turn,
            "round": done.round,
            "node": node,
            **{name: column[node] for name, column in columns.items()},
            **_text_cells("", tree.token[node], vocab),
        }


def _text_cells(
    prefix: str, token: int | None, vocab: Mapping[int, TokenText]
) -> dict[str, str | None]:
    """A token's exact text, and its bytes in hex where it is not text by itself."""
    text, raw = vocab.get(-1 if token is None else token, TokenText(""))
    return {f"{prefix}text": text, f"{prefix}bytes": None if raw is None else raw.hex()}


# The run


def _print_run(reader: TraceReader, turn: int | None, worst: int, output: TraceFormat) -> None:
    run = RunSummary(turn=turn, worst=worst, keep_rounds=output is TraceFormat.JSON)
    damage: TraceError | None = None
    try:
        for event in reader:
            run.update(event)
    except TraceError as error:
        if output is TraceFormat.JSON:
            raise
        damage = error  # show what came before it, then say so
    _check_turn(turn, bool(run.turns) or damage is not None)
    if output is TraceFormat.JSON:
        print_json({**run.to_dict(), "cut": reader.cut})
    else:
        from rich.text import Text

        from dartree_core.render import token_shower
        from dartree_core.render_run import render_run

        console = stdout_console()
        show = token_shower(reader.vocab)
        console.print(render_run(run, show, ascii_only=console.options.ascii_only))
        if reader.cut:
            console.print(Text("The recording was cut short; all whole lines were read.", "bold"))
    if damage is not None:
        raise damage


def _write_rounds(reader: TraceReader, turn: int | None) -> bool:
    """CSV, one row a round; whether there was any event of the turn."""
    found = False

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal found
        for event in reader:
            found = found or getattr(event, "turn", None) == turn
            if isinstance(event, RoundDone) and turn in (None, event.turn):
                yield _round_cells(RoundRow.of(event), reader.vocab)

    _write_csv(_ROUND_COLUMNS, rows())
    return found


def _round_cells(row: RoundRow, vocab: Mapping[int, TokenText]) -> dict[str, Any]:
    return {
        **row._asdict(),
        **_text_cells("bonus_", row.bonus, vocab),
        **{f"{stage}_ms": row.stages.get(stage) for stage in STAGES},
    }


# Output


def _write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A header and the rows; what a row lacks or does not know is empty."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore")
    writer.writeheader()
    for row in chain(rows, (None,)):
        typer.echo(buffer.getvalue().encode("utf-8", "backslashreplace"), nl=False)
        buffer.seek(0)
        buffer.truncate()
        if row is not None:
            writer.writerow(row)
