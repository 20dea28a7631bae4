from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, subprocess, sys, threading
from dartree_tui.priority import NICENESS, Launcher
launcher = Launcher()
launcher.step_back()
ask = [sys.executable, "-c", "import os; print(os.nice(0))"]
def child():
    return subprocess.run(ask, capture_output=True, text=True)
own, started = os.nice(0), int(launcher(child).stdout)
again = int(launcher(child).stdout)
print(own - started == NICENESS, again == started, int(child().stdout) == own)
def fail():
    raise FileNotFoundError("no such worker")
try:
    launcher(fail)
except FileNotFoundError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to threads on Linux only")
def test_the_app_steps_back_and_workers_do_not() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["True True True", "no such worker"], done.stderr
