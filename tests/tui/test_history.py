from __future__ import annotations

from pathlib import Path

from dartree_tui.history import History


def test_walking_back_and_forth_keeps_the_draft() -> None:
    past = History()
    past.add("one")
    past.add("two")
    assert past.back("my draft") == "two"
    assert past.back("two") == "one"
    assert past.back("one") is None
    assert past.forward("one") == "two"
    assert past.forward("two") == "my draft"
    assert past.forward("my draft") is None


def test_edits_of_what_is_recalled_stay_until_something_is_sent() -> None:
    past = History()
    past.add("one")
    past.add("two")
    assert past.back("draft") == "two"
    assert past.back("two, edited") == "one"
    assert past.forward("one, edited") == "two, edited"
    assert past.back("two, edited again") == "one, edited"
    past.add("one, edited")
    assert past.back("") == "one, edited"
    assert past.back("one, edited") == "two"
    assert past.back("two") == "one"


def test_the_file_survives_restarts_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"
    past = History(path)
    past.add("with\nline break")
    past.add("with\nline break")
    past.add("日本")
    again = History(path)
    assert again.back("") == "日本"
    assert again.back("") == "with\nline break"
    assert again.back("") is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_damaged_lines_and_unwritable_folders_lose_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('"good"\n{broken\n3\n')
    past = History(path)
    assert past.back("") == "good"
    folder = tmp_path / "file"
    folder.write_text("")
    unwritable = History(folder / "history.jsonl")
    unwritable.add("kept in memory")
    assert unwritable.back("") == "kept in memory"
