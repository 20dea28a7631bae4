from __future__ import annotations

import json
from pathlib import Path

import pytest

from dartree_core.errors import TraceError
from dartree_tui.client import Client
from dartree_tui.clipboard import code_blocks
from dartree_tui.conversation import Conversation, Message, reopen, saved
from dartree_tui.engines.replay import ReplayEngine
from dartree_tui.settings import Settings
from dartree_tui.spool import Spool
from tests.tui.driving import PLAIN, wait
from tests.tui.test_client import answered, client


def talk() -> Conversation:
    conversation = Conversation("Be kind.")
    conversation.say("Hello?\nsecond line")
    conversation.answer("Hi *there*.", 0)
    return conversation


def test_markdown_holds_everything() -> None:
    text = talk().to_markdown()
    assert text.startswith("# Hello?\n")
    for piece in ("## System\n\nBe kind.", "## You\n\nHello?\nsecond line", "Hi *there*."):
        assert piece in text


def test_saving_twice_uses_one_folder_and_two_conversations_use_two(tmp_path: Path) -> None:
    spool = Spool()
    first, second = talk(), talk()
    folder = first.save(spool, tmp_path)
    first.say("more")
    assert first.save(spool, tmp_path) == folder
    assert second.save(spool, tmp_path) != folder
    assert {s.folder for s in saved(tmp_path)} == {folder, second.folder}
    again = reopen(folder)
    assert again.messages == [*talk().messages, Message("user", "more")]
    assert (again.system, again.created) == (first.system, first.created)
    assert (folder / "trace.jsonl").stat().st_mode & 0o777 == 0o600
    spool.close()


@pytest.mark.parametrize(
    "content",
    [
        "{broken",
        "[]",
        json.dumps({"format": 99, "messages": []}),
        json.dumps({"format": 1, "messages": [{"role": "cat", "content": "x"}]}),
        json.dumps({"format": 1, "messages": [{"role": "user", "content": 3}]}),
        json.dumps({"format": 1, "messages": [{"role": "user", "content": "", "turns": ["0"]}]}),
    ],
)
def test_damaged_conversations_are_left_out_and_refused(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "conversation.json").write_text(content)
    assert list(saved(tmp_path)) == []
    with pytest.raises(TraceError, match=r"conversation\.json"):
        reopen(folder)


def test_an_answer_knows_all_turns_that_wrote_it(tmp_path: Path) -> None:
    conversation = talk()
    conversation.go_on(" More.", 2)
    spool = Spool()
    folder = conversation.save(spool, tmp_path)
    spool.close()
    assert reopen(folder).messages == conversation.messages
    assert [m.turns for m in conversation.messages] == [(), (0, 2)]
    assert conversation.answered == 2


@pytest.mark.parametrize(("turn", "turns"), [({"turn": 3}, (3,)), ({"turn": None}, ()), ({}, ())])
def test_earlier_versions_kept_an_answer_s_last_turn(
    tmp_path: Path, turn: dict[str, int | None], turns: tuple[int, ...]
) -> None:
    message = {"role": "assistant", "content": "Hi.", **turn}
    data = {"format": 1, "created": "", "title": "", "system": "", "messages": [message]}
    (tmp_path / "conversation.json").write_text(json.dumps(data))
    assert reopen(tmp_path).messages == [Message("assistant", "Hi.", turns)]


def test_a_replay_is_exported_and_saved_as_it_was_said(tmp_path: Path) -> None:
    settings = PLAIN.changed("decode", max_new_tokens=20)
    made = client(settings=settings, record=tmp_path / "run.jsonl")
    answered(made, "explain")
    assert made.go_on()
    wait(made, lambda: made.status == "ready")
    answered(made, "and more")
    messages = made.conversation.messages
    made.close()
    assert messages[1].turns == (0, 1)

    again = Client(lambda: ReplayEngine(tmp_path / "run.jsonl"), Settings())
    again.start()
    wait(again, lambda: again.complete)
    assert [t.continues for t in again.store.turns] == [None, 0, None]
    text = again.said().to_markdown()
    assert text.startswith("# explain\n")
    assert messages[1].content.strip() in text
    folder = again.save()
    again.close()
    assert folder is not None
    assert reopen(folder).messages == messages


def test_a_question_is_taken_back() -> None:
    conversation = talk()
    assert conversation.take_back() == "Hello?\nsecond line"
    assert conversation.messages == []
    assert conversation.take_back() is None


def test_code_blocks_are_copied_as_written() -> None:
    text = "x\n```python\na = 1\n\n  b\n```\ny\n~~~\nc\n~~~~\n```\nopen"
    assert code_blocks(text) == ["a = 1\n\n  b\n", "c\n", "open"]
    assert code_blocks("no code, `inline` only") == []
