"""The thread that notices when a process of the group is lost, says which, and ends this one.

A collective whose partner is gone waits for minutes, inside native code that no Python signal
handler reaches. So the thread keeps its own connection to torchrun's store, and ends the process
itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dartree_core.errors import DARTreeError
from dartree_core.parallel.pulse import Heart, Listener, Lost, Patience, Pulse, name
from dartree_core.parallel.world import World

INTERVAL = 0.25
_LEAVING = 5.0
"""Seconds rank 0 waits for the others to see that the run is over."""
_LED = 25.0
"""Seconds that other ranks wait for rank 0 after SIGTERM; torchrun kills after 30."""
_DOUBT = 4.0
"""Seconds in which a lost rank is surely found, on a busy machine too."""
_LAST_WORDS = 1.5
"""Seconds between a fault's report and the hard exit, for whoever is still writing."""

OnFault = Callable[[str, str], None]


class RankError(DARTreeError):
    """A process of the group is lost, so the run cannot go on."""


class Watch:
    """Watches a group from one of its processes.

    Args:
        world: This process.
        store: A connection to the group's key-value store that nobody else uses.
        patience: How long processes may be quiet.

    Attributes:
        heart: Told of joint passes.
        broken: Set when the ranks are out of step: then this process ends as failed, whatever else
            it was about to end with.
        interrupts: Whether SIGTERM becomes a Ctrl-C here; if not, rank 0 says when to end.
        on_fault: Hears message and remedy before this process ends, in the watching thread.
    """

    def __init__(self, world: World, store: Any, patience: Patience | None = None) -> None:
        self.world = world
        self.heart = Heart()
        self.broken = False
        self.interrupts = world.leads
        self.on_fault: OnFault | None = None
        self._store = store
        self._listener = Listener(patience)
        self._errors = os.dup(2)
        self._over = threading.Event()
        self._terminates = _hold_sigterm()
        self._keys = [f"pulse/{rank}" for rank in range(world.size)]
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self) -> None:
        """Begin to watch."""
        self._store.set(self._keys[self.world.rank], self.heart.pulse().to_json())
        self._thread.start()

    def finish(self, code: int) -> int:
        """This process has done its part: others need not miss it.

        Rank 0's word ends the run for all of them.

        Args:
            code: Exit code of the run.

        Returns:
            What to exit with.
        """
        self._over.set()
        self._thread.join()
        code = code or int(self.broken)
        with suppress(Exception):
            if self.world.leads:
                self._store.set("ended", str(code))
            self._store.set(f"left/{self.world.rank}", "1")
            deadline = time.monotonic() + _LEAVING
            while self.world.leads and time.monotonic() < deadline and self._present():
                time.sleep(INTERVAL / 5)
        return code

    def fail(self, message: str, remedy: str, *, code: int = 1) -> None:
        """This process cannot go on. Rank 0 says so, unless the run is ending anyway; ends here.

        Args:
            message: What happened here; the rank's name is put before it.
            remedy: What to do.
            code: Exit code.
        """
        with suppress(Exception):
            if self._waits_for("ended", _LAST_WORDS):
                os._exit(code)
            # Stay until rank 0 has spoken: it would take a broken connection for the fault.
            self._over.set()
            pulse = self.heart.pulse()
            words = {
                "message": f"{name(self.world.rank, pulse)} {message}",
                "remedy": remedy,
                "rank": self.world.rank,
            }
            self._store.set("fault", json.dumps(words))
            if not self.world.leads:
                self._waits_for("left/0", 2 * _LAST_WORDS)
        os._exit(code)

    def is_it_another(self) -> None:
        """Give the watch time to find that an error here comes from a rank that is lost.

        Returns when it does not; else this process ends, with the lost rank's name as its error.
        """
        time.sleep(_DOUBT)

    def _waits_for(self, key: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._store.check([key]):
                return True
            time.sleep(INTERVAL / 5)
        return False

    def _present(self) -> list[int]:
        return [r for r in range(self.world.size) if not self._store.check([f"left/{r}"])]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._look()
            except Exception as error:
                # The store lives with torchrun or with rank 0: without it nobody is left to ask.
                if not self._over.is_set():
                    words = f"The group's store is gone ({error})."
                    self._end(Lost(0, words, "Start again."), speaks=True)
            if _slept_through(INTERVAL, self._terminates):
                self._terminated()

    def _look(self) -> None:
        store = self._store
        store.set(self._keys[self.world.rank], self.heart.pulse().to_json())
        if store.check(["ended"]) and not self.world.leads:
            code = int(store.get("ended"))
            store.set(f"left/{self.world.rank}", "1")
            os._exit(code)
        if store.check(["fault"]):
            words = json.loads(store.get("fault"))
            self._end(Lost(words["rank"], words["message"], words["remedy"]))
        for rank, key in enumerate(self._keys):
            if store.check([key]) and not store.check([f"left/{rank}"]):
                self._listener.hear(rank, Pulse.from_json(store.get(key)))
            else:
                self._listener.forget(rank)
        lost = self._listener.lost()
        if lost is not None:
            self._end(lost)

    def _terminated(self) -> None:
        """torchrun sends SIGTERM to all when one process has died, or when it is told to end."""
        self._look_for(2 * INTERVAL)
        main = threading.main_thread().ident
        if self.interrupts and main is not None:
            signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C: finish what can be finished
            return
        self._look_for(_LED)  # rank 0 says when the run is over
        os._exit(128 + signal.SIGTERM)

    def _look_for(self, seconds: float) -> None:
        """Watch closely for a while; ends the process when the run ends or a rank is lost."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(Exception):
                self._look()
            time.sleep(INTERVAL / 5)

    def _end(self, lost: Lost, *, speaks: bool = False) -> None:
        """Report from one process, and end this one."""
        speaker = 0 if lost.rank != 0 else 1
        if speaks or self.world.rank == speaker:
            # An answer may stand unfinished in the line above.
            os.write(self._errors, f"\nerror: {lost.message}\n{lost.remedy}\n".encode())
            if self.on_fault is not None:
                with suppress(Exception):
                    self.on_fault(lost.message, lost.remedy)
        if lost.pid and lost.rank != self.world.rank:
            # It hears no SIGTERM, and torchrun would wait for it.
            with suppress(OSError):
                os.kill(lost.pid, signal.SIGKILL)
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            self._store.set(f"left/{self.world.rank}", "1")
        os._exit(1)


def _hold_sigterm() -> bool:
    """Keep SIGTERM for the watching thread; False where the system cannot."""
    if not hasattr(signal, "sigtimedwait"):
        return False
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return True


def _slept_through(seconds: float, terminates: bool) -> bool:
    """Sleep; True when SIGTERM came meanwhile."""
    if not terminates:
        time.sleep(seconds)
        return False
    return signal.sigtimedwait({signal.SIGTERM}, seconds) is not None
