"""What was said: kept, exported as Markdown, saved with its trees, and opened again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import platformdirs

from dartree_core.errors import TraceError
from dartree_tui.answers import parts, whole
from dartree_tui.settings import write_atomically
from dartree_tui.spool import Spool

if TYPE_CHECKING:
    from dartree_tui.store import Turn

Role = Literal["user", "assistant"]

_FILE = "conversation.json"
_TRACE = "trace.jsonl"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        turns: Indices of the turns that wrote it, for answers: more than one when gone on with.
    """

    role: Role
    content: str
    turns: tuple[int, ...] = ()

    @property
    def turn(self) -> int | None:
        """The turn that wrote its end."""
        return self.turns[-1] if self.turns else None


@dataclass(slots=True)
class Conversation:
    """A list of messages, user and assistant in turns.

    Attributes:
        folder: Where it is saved, once it is.
    """

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    folder: Path | None = None

    @property
    def title(self) -> str:
        """The first line of the first question."""
        for message in self.messages:
            line = message.content.strip().partition("\n")[0]
            if line:
                return line if len(line) <= 60 else line[:59] + "…"
        return "empty conversation"

    def prompt(self) -> list[dict[str, str]]:
        """Everything said so far, as a chat template takes it."""
        head = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return head + [{"role": m.role, "content": m.content} for m in self.messages]

    def retell(self, turns: Sequence[Turn]) -> None:
        """Hold what these turns said, in place of what was held: for a run nobody typed here."""
        self.system, self.messages = "", []
        for turn in turns:
            if turn.continues is None:
                self.say(turn.prompt)
                if text := whole(turns, turn):
                    found = tuple(part.index for part in parts(turns, turn))
                    self.messages.append(Message("assistant", text, found))

    @property
    def answered(self) -> int | None:
        """Index of the turn that wrote the last message, if that is an answer."""
        last = self.messages[-1] if self.messages else None
        return last.turn if last is not None and last.role == "assistant" else None

    def say(self, text: str) -> None:
        """Add what the user said."""
        self.messages.append(Message("user", text))

    def answer(self, text: str, turn: int) -> None:
        """Add the model's answer."""
        self.messages.append(Message("assistant", text, (turn,)))

    def go_on(self, text: str, turn: int) -> None:
        """Add to the last answer what a later turn wrote."""
        last = self.messages[-1]
        self.messages[-1] = Message("assistant", last.content + text, (*last.turns, turn))

    def take_back(self) -> str | None:
        """Remove the last answer, if it is last, and the question before it; return the question.

        For asking again, and after a failure.
        """
        if self.messages and self.messages[-1].role == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1].role == "user":
            return self.messages.pop().content
        return None

    def to_markdown(self) -> str:
        """The conversation as a Markdown document."""
        parts = [f"# {self.title}", f"_{self.created}_"]
        if self.system.strip():
            parts.append("## System\n\n" + self.system.strip())
        names = {"user": "You", "assistant": "Assistant"}
        parts += [f"## {names[m.role]}\n\n{m.content.strip()}" for m in self.messages]
        return "\n\n".join(parts) + "\n"

    def save(self, spool: Spool, root: Path | None = None) -> Path:
        """Write messages and trace into a folder of their own; again into the same one later.

        Raises:
            ConfigError: the folder cannot be written.
        """
        folder = self.folder or _free_folder(root or conversations_path(), self.title)
        data = {
            "format": _FORMAT,
            "created": self.created,
            "title": self.title,
            "system": self.system,
            "messages": [asdict(m) for m in self.messages],
        }
        write_atomically(folder / _FILE, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
        spool.copy_to(folder / _TRACE)
        self.folder = folder
        return folder


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved conversation, as a list shows it."""

    folder: Path
    title: str
    created: str
    answers: int

    @property
    def trace(self) -> Path:
        """Its trace, which may be missing."""
        return self.folder / _TRACE


def conversations_path() -> Path:
    """Where conversations are saved."""
    return platformdirs.user_data_path("dartree") / "conversations"


def saved(root: Path | None = None) -> Iterator[Saved]:
    """Saved conversations, the newest first; damaged ones are left out."""
    files = sorted(
        (root or conversations_path()).glob(f"*/{_FILE}"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for file in files:
        try:
            data = _read(file)
        except TraceError:
            continue
        answers = sum(m["role"] == "assistant" for m in data["messages"])
        yield Saved(file.parent, str(data["title"]), str(data["created"]), answers)


def reopen(folder: Path) -> Conversation:
    """A saved conversation's messages. Its trace is beside them, see `Saved.trace`.

    Raises:
        TraceError: the folder does not hold a conversation of this version.
    """
    data = _read(folder / _FILE)
    messages = [Message(m["role"], m["content"], _turns(m)) for m in data["messages"]]
    return Conversation(str(data["system"]), messages, str(data["created"]), folder)


def _read(file: Path) -> dict[str, Any]:
    remedy = "Choose a folder that was saved by this version."
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            raise TraceError(f"{file} has format {data['format']}, not {_FORMAT}.", remedy)
        for message in data["messages"]:
            if message["role"] not in ("user", "assistant"):
                raise ValueError("a message is damaged")
            str.strip(message["content"])
            _turns(message)
        _ = data["title"], data["created"], data["system"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TraceError(f"{file} is no saved conversation: {error}.", remedy) from error
    return dict(data)


def _turns(message: dict[str, Any]) -> tuple[int, ...]:
    last = message.get("turn")  # all that earlier versions kept
    turns = message.get("turns", [] if last is None else [last])
    if not isinstance(turns, list) or not all(isinstance(turn, int) for turn in turns):
        raise ValueError("a message is damaged")
    return tuple(turns)


def _free_folder(root: Path, title: str) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d %H%M")
    words = re.sub(r"[^\w -]+", "", title)[:40].strip() or "conversation"
    folder = root / f"{stamp} {words}"
    number = 2
    while folder.exists():
        folder = root / f"{stamp} {words} {number}"
        number += 1
    return folder
