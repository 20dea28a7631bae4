"""What `dartree run` came to: figures of the run, and of plain decoding beside it."""

from __future__ import annotations

from typing import Any

from dartree_core.config import DecodeConfig
from dartree_core.events import TurnFinished
from dartree_core.metrics import RunningMetrics


class Outcome:
    """What a run came to.

    Attributes:
        config: Settings of the run.
        finished: The turn's end.
        metrics: Its figures, with the lists per step.
        plain: The end and figures of the plain turn of `--compare-ar`, or None.
        load_s: Seconds until models were ready.
        profile: What `--profile` found, or None.
    """

    def __init__(self, config: DecodeConfig) -> None:
        self.config = config
        self.finished: TurnFinished
        self.running = RunningMetrics(per_step=None)
        self.plain: TurnFinished | None = None
        self.plain_running = RunningMetrics()
        self.load_s = 0.0
        self.profile: dict[str, Any] | None = None

    @property
    def metrics(self) -> dict[str, Any]:
        """Figures of the run."""
        return self.running.summary()

    def comparison(self) -> dict[str, Any] | None:
        """How the run compares with plain decoding, or None when it was not asked for.

        `identical` is None where a turn was cancelled before there was a token to compare;
        `compared_tokens` says how many tokens both have.
        """
        if self.plain is None:
            return None
        ours = self.metrics["tokens_per_second"]
        plain = self.plain_running.summary()["tokens_per_second"]
        return {
            "identical": _identical(self.finished, self.plain),
            "compared_tokens": min(len(self.finished.token_ids), len(self.plain.token_ids)),
            "speedup": round(ours / plain, 4) if ours and plain else None,
            "tokens_per_second": ours,
            "ar_tokens_per_second": plain,
        }

    def to_dict(self) -> dict[str, Any]:
        """The object of `--format json`."""
        metrics = self.metrics
        out = {
            "text": self.finished.text,
            "token_ids": list(self.finished.token_ids),
            "finish_reason": self.finished.reason,
            "method": self.config.method,
            "config": self.config.to_dict(),
            "metrics": metrics,
            "timings": {
                "load_s": round(self.load_s, 4),
                "prefill_s": metrics["prefill_s"],
                "ttft_s": metrics["ttft_s"],
                "decode_s": metrics["decode_s"],
                "stage_ms_mean": metrics["stage_ms_mean"],
            },
        }
        comparison = self.comparison()
        if comparison is not None:
            out["compare"] = comparison
        if self.profile is not None:
            out["profile"] = self.profile
        return out


def _identical(*turns: TurnFinished) -> bool | None:
    """Whether two turns say the same, as far as one that was cancelled got."""
    short, long = sorted(turns, key=lambda turn: len(turn.token_ids))
    length = len(short.token_ids)
    if not length and "cancelled" in (short.reason, long.reason):
        return None
    ended = short.reason != "cancelled" and length < len(long.token_ids)
    return not ended and list(short.token_ids) == list(long.token_ids[:length])
