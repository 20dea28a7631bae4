from __future__ import annotations

from dartree_tui.provenance import split_delta


def test_tokens_divide_the_delta() -> None:
    parts = split_delta(
        " the cat sat", (10, 22), [" the", " cat", " sat"], ["draft", "draft", "bonus"]
    )
    assert parts == [(10, 18, "draft"), (18, 22, "bonus")]


def test_a_bonus_that_was_held_back_claims_nothing() -> None:
    assert split_delta(" cat", (0, 4), [" cat", "\ufffd"], ["draft", "bonus"]) == [(0, 4, "draft")]


def test_text_released_late_belongs_to_the_first_token() -> None:
    parts = split_delta("🙂 yes", (5, 10), ["\ufffd", " yes"], ["draft", "bonus"])
    assert parts == [(5, 6, "draft"), (6, 10, "bonus")]


def test_text_of_no_token_is_still_covered() -> None:
    assert split_delta("abc", (0, 3), [], []) == [(0, 3, "bonus")]
    assert split_delta("", (0, 0), ["x"], ["bonus"]) == []
