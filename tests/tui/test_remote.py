"""A worker at the far end of a link that is slow, is cut, or never answers."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from dartree_core.worker_protocol import Generate, Load, Pause, Reply
from dartree_tui.client import Client
from dartree_tui.engines import Intake, Lost
from dartree_tui.engines.fake_decoder import ANSWER
from dartree_tui.engines.process import ProcessEngine
from dartree_tui.settings import Settings
from tests.tui.driving import until, wait
from tests.tui.snapshots import screen_text
from tests.tui.test_engines import collect, ended, lost

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell and its pipes")

WORKER = '''
"""The real worker around a decoder without a model."""
import sys
from dartree_core.pieces import TokenText
from dartree_core.trace import Recorder, to_line
from dartree_core.worker import Worker
from dartree_core.worker_protocol import Reply, encode_reply
from dartree_tui.engines.fake_decoder import FakeDecoder

decoder = FakeDecoder(0.002)
recorder = Recorder(lambda token: TokenText(decoder.words[token]))
out = sys.stdout.buffer

def emit(record):
    bodies = [encode_reply(record)] if isinstance(record, Reply) else recorder.records(record)
    out.write(b"".join(map(to_line, bodies)))
    out.flush()

import threading
worker = Worker(lambda request, report: (decoder, decoder.facts), emit)
threading.Thread(target=worker.read, args=(sys.stdin.buffer,), daemon=True).start()
worker.run()
'''

SSH = '''
"""ssh HOST COMMAND...: a link that breaks in the middle of a line when its fuse has burnt down.

The fuse is a file with the number of rounds that still get through; without it, all do.
"""
import os, subprocess, sys
fuse, *command = sys.argv[2:]
left = int(open(fuse).read()) if os.path.exists(fuse) else None
child = subprocess.Popen(command, stdin=0, stdout=subprocess.PIPE)
for line in child.stdout:
    if left is not None and line.startswith(b'{"kind":"RoundDone"'):
        left -= 1
        if left < 0:
            os.remove(fuse)
            sys.stdout.buffer.write(line[: len(line) // 2])
            sys.stdout.buffer.flush()
            sys.stderr.write("client_loop: send disconnect: Broken pipe\\n")
            child.kill()
            os._exit(255)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
'''


@pytest.fixture
def link(tmp_path: Path) -> tuple[str, Path]:
    """A command that runs a worker behind a stand-in for ssh, and the fuse of its link."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "ssh.py").write_text(SSH)
    fuse = tmp_path / "fuse"
    words = [sys.executable, "ssh.py", "gpu", fuse, sys.executable, "worker.py"]
    full = [str(tmp_path / w) if w in ("ssh.py", "worker.py") else str(w) for w in words]
    return shlex.join(full), fuse


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))


def connected(command: str) -> Client:
    settings = Settings().changed("engine", calibrate=False)
    made = Client(lambda: ProcessEngine(command), settings)
    made.start()
    wait(made, lambda: made.status in ("ready", "lost"))
    assert made.status == "ready", made.lost
    return made


def test_a_cut_answer_is_gone_on_with_where_it_broke_off(link: tuple[str, Path]) -> None:
    command, fuse = link
    made = connected(command)
    fuse.write_text("4")
    made.restart()
    wait(made, lambda: made.status == "ready")
    made.ask("explain")
    wait(made, lambda: made.status == "lost")
    assert made.lost is not None
    assert "exit code 255" in made.lost.message
    assert "Broken pipe" in made.lost.tail[-1]
    assert len(made.store.marks) == 4, "half a line is no round"
    said = made.store.turns[0].text
    assert said
    assert [m.content for m in made.conversation.messages] == ["explain", said]
    assert made.unsent is None
    assert made.cut_off

    made.restart(go_on=True)
    wait(made, lambda: made.status == "ready" and len(made.store.turns) == 2)
    assert made.store.turns[1].continues == 0
    assert made.conversation.messages[-1].content == ANSWER
    assert said + made.store.turns[1].text == ANSWER
    assert not made.cut_off
    made.ask("more")
    wait(made, lambda: made.status == "ready")
    assert len(made.conversation.messages) == 4
    made.close()


def test_a_cut_answer_can_be_asked_for_again(link: tuple[str, Path]) -> None:
    command, fuse = link
    fuse.write_text("3")
    made = connected(command)
    made.ask("explain")
    wait(made, lambda: made.status == "lost")
    made.restart()
    wait(made, lambda: made.status == "ready")
    assert any("ctrl+g" in notice.text for notice in made.notices)
    assert made.regenerate()
    wait(made, lambda: made.status == "ready")
    assert [m.content for m in made.conversation.messages] == ["explain", ANSWER]
    assert [t.replaced for t in made.store.turns] == [True, False]
    assert not made.go_on()
    made.close()


def test_a_link_that_breaks_again_and_again_loses_no_word(link: tuple[str, Path]) -> None:
    command, fuse = link
    fuse.write_text("2")
    made = connected(command)
    made.ask("explain")
    for _ in range(2):
        wait(made, lambda: made.status == "lost")
        fuse.write_text("2")
        made.restart(go_on=True)
    wait(made, lambda: made.status == "lost")
    made.restart(go_on=True)  # a burnt fuse is gone: this link holds
    wait(made, lambda: made.status == "ready" and made.store.turns[-1].over)
    assert made.conversation.messages[-1].content == ANSWER
    assert "".join(turn.text for turn in made.store.turns) == ANSWER
    made.close()


async def test_the_app_says_that_the_link_broke_and_goes_on(link: tuple[str, Path]) -> None:
    from dartree_tui.app import DartreeApp

    command, fuse = link
    fuse.write_text("3")
    settings = Settings().changed("engine", calibrate=False)
    app = DartreeApp(lambda: ProcessEngine(command), settings, watch=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.client.status == "ready")
        await pilot.press(*"explain", "enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        text = screen_text(app)
        assert "exit code 255" in text
        assert "Broken pipe" in text
        assert "goes on with the answer" in text
        await pilot.press("enter")
        client = app.client
        await until(pilot, lambda: client.status == "ready" and len(client.store.turns) == 2)
        assert app.client.conversation.messages[-1].content == ANSWER
        assert screen_text(app).count("you ") <= 1


DEAF = "import time; print('{}', flush=True); time.sleep(600)"


def test_a_full_pipe_never_holds_the_app(tmp_path: Path) -> None:
    engine = ProcessEngine([sys.executable, "-c", DEAF], tmp_path / "worker.log")
    engine.start(Intake(None, {}))
    began = time.thread_time()
    for number in range(64):
        engine.send(Generate("x" * (1 << 16), id=number))  # 4 MB into a pipe that nobody reads
    assert time.thread_time() - began < 10
    assert engine._process is not None
    assert engine._process.poll() is None
    engine.close()
    assert engine._process.wait(20) != 0


def test_a_link_that_dies_while_we_write_is_a_loss(tmp_path: Path) -> None:
    code = "import os, sys; os.read(0, 10); sys.stderr.write('reset by peer'); os._exit(255)"
    engine = ProcessEngine([sys.executable, "-c", code], tmp_path / "worker.log")
    intake = Intake(None, {})
    engine.start(intake)
    for _ in range(8):
        engine.send(Generate("x" * (1 << 16)))
    end = lost(collect(intake, ended))
    assert end.tail == ("reset by peer",)
    engine.send(Pause())
    engine.close()


def test_a_slow_link_delivers_lines_in_pieces(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        'for piece in (b\'{"kind":"Reply",\', b\'"id":7,"op":"lo\', b\'ad"}\\n{"kind"\'):\n'
        "    sys.stdout.buffer.write(piece); sys.stdout.buffer.flush()\n"
        "sys.stdin.readline()\n"
    )
    engine = ProcessEngine([sys.executable, "-c", code], tmp_path / "worker.log")
    intake = Intake(None, {})
    engine.start(intake)
    first = collect(intake, lambda records: len(records) == 1)
    assert first == [Reply(7, "load")]
    engine.send(Load())
    rest = collect(intake, ended)
    assert isinstance(rest[0], Lost)
    assert "exit code 0" in rest[0].message
    engine.close()
