from __future__ import annotations

from dartree_tui.places import place_in_source

SOURCE = "# Title\n\nThe *cat* sat on the **mat**, and the cat slept.\n\n- one cat\n"
SHOWN = "The cat sat on the mat, and the cat slept."


def at(word: str, nth: int = 0) -> int | None:
    place = -1
    for _ in range(nth + 1):
        place = SHOWN.index(word, place + 1)
    return place_in_source(SOURCE, (2, 3), SHOWN[:place], SHOWN[place:])


def test_a_word_is_found_behind_marks() -> None:
    assert at("sat") == SOURCE.index("sat")
    assert at("slept") == SOURCE.index("slept")


def test_the_same_word_again_is_the_later_one() -> None:
    assert at("cat", 0) == SOURCE.index("cat")
    assert at("cat", 1) == SOURCE.index("cat slept")


def test_a_place_within_a_word() -> None:
    cut = SHOWN.index("slept") + 2
    assert place_in_source(SOURCE, (2, 3), SHOWN[:cut], SHOWN[cut:]) == SOURCE.index("ept.")


def test_a_word_the_source_writes_otherwise_is_its_block() -> None:
    assert place_in_source(SOURCE, (2, 3), "", "•other") == SOURCE.index("The")


def test_blanks_and_places_outside_are_nothing() -> None:
    assert place_in_source(SOURCE, (2, 3), "The ", " ") is None
    assert place_in_source(SOURCE, (40, 41), "", "cat") is None
