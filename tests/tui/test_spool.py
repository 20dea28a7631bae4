"""The run on disk, also where the disk gives out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dartree_core.errors import TraceError
from dartree_core.events import RunStarted, encode
from dartree_core.trace import to_line
from dartree_tui.engines.fake_decoder import ANSWER
from dartree_tui.spool import Spool
from tests.tui.driving import PLAIN, wait
from tests.tui.test_client import answered, client

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def test_a_temporary_spool_leaves_nothing_behind(tmp_path: Path) -> None:
    spool = Spool()
    assert spool.path.exists() == (os.name != "posix")
    event = RunStarted(prompt="hello")
    spool.append(event, to_line(encode(event)), {})
    spool.copy_to(tmp_path / "copy.jsonl")
    assert b"hello" in (tmp_path / "copy.jsonl").read_bytes()
    spool.close()
    assert not spool.path.exists()


@needs_full
def test_a_recording_that_cannot_be_written_ends_and_the_chat_goes_on() -> None:
    made = client(settings=PLAIN, record=FULL)
    answered(made, "explain")
    answered(made, "and more")
    told = [n.text for n in made.notices]
    assert len(told) == 1
    assert "No space left" in told[0]
    assert "recording ends here" in told[0]
    assert [t.text for t in made.store.turns] == [ANSWER, ANSWER]
    assert made.save()
    made.close()


@needs_full
def test_a_run_that_cannot_be_kept_goes_on_and_says_so() -> None:
    made = client(settings=PLAIN)
    made.spool._out = FULL.open("wb")
    answered(made, "explain")
    wait(made, lambda: bool(made.notices))
    assert len(made.notices) == 1
    assert "cannot be kept on disk" in made.notices[0].text
    assert made.store.turns[0].text == ANSWER
    with pytest.raises(TraceError):
        made.spool.round(made.store.marks[-1].offset)
    assert made.save() is None
    assert "could not be kept" in made.notices[-1].text
    answered(made, "and more")
    made.close()


def test_a_conversation_that_cannot_be_recorded_begins_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    made = client(settings=PLAIN, record=folder / "run.jsonl")
    answered(made, "explain")
    (folder / "run-2.jsonl").mkdir()
    assert made.new_conversation()
    assert "Nothing is recorded" in made.notices[-1].text
    answered(made, "and more")
    assert made.store.turns[0].text == ANSWER
    assert made.save()
    made.close()


def test_a_conversation_stays_where_another_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = client(settings=PLAIN)
    answered(made, "explain")
    store = made.store

    def full(**_: object) -> tuple[int, str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert not made.new_conversation()
    assert "No space left" in made.notices[-1].text
    assert made.store is store
    answered(made, "and more")
    assert made.spool.round(made.store.marks[0].offset)
    made.close()
