from __future__ import annotations

import asyncio
import threading
import time

from dartree_tui.bell import Bell

LONG = 60.0


async def test_waiting_ends_in_time() -> None:
    began = time.monotonic()
    await Bell().wait(0.05)
    assert 0.03 < time.monotonic() - began < LONG / 2


async def test_any_thread_wakes_who_waits() -> None:
    bell = Bell()
    began = time.monotonic()
    threading.Timer(0.05, bell.ring).start()
    await bell.wait(LONG)
    asyncio.get_running_loop().call_later(0.05, bell.ring)
    await bell.wait(LONG)
    assert time.monotonic() - began < LONG / 2


async def test_a_bell_nobody_waits_for_is_not_heard_later() -> None:
    bell = Bell()
    bell.ring()
    began = time.monotonic()
    await bell.wait(0.05)
    assert time.monotonic() - began > 0.03
    bell.ring()


async def test_what_happens_while_one_lies_down_is_not_slept_over() -> None:
    bell = Bell()
    began = time.monotonic()
    await bell.wait(LONG, unless=lambda: True)

    def rung_meanwhile() -> bool:
        thread = threading.Thread(target=bell.ring)
        thread.start()
        thread.join()
        return False

    await bell.wait(LONG, unless=rung_meanwhile)
    assert time.monotonic() - began < LONG / 2


def test_a_loop_that_is_over_is_no_fault() -> None:
    bell = Bell()
    bell._loop = asyncio.new_event_loop()
    bell._loop.close()
    bell.ring()
