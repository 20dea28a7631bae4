from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, weakref
from dartree_tui.garbage import leave_alone_what_exists

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

gone = cycle()
old = [[] for _ in range(1000)]
before = len(gc.get_objects())
leave_alone_what_exists()
assert gone() is None                      # collected first
assert gc.get_freeze_count() >= 1000
assert len(gc.get_objects()) < before - 1000
late = cycle()
gc.collect()
assert late() is None                      # what comes later still is
"""


def test_what_exists_is_left_alone_and_what_comes_is_collected() -> None:
    """In a process of its own: it is for the whole of one."""
    subprocess.run([sys.executable, "-c", CODE], check=True)
