"""What all tests share."""

from __future__ import annotations

import os

# Tiny models run fastest on one thread, and a second one on a busy machine waits at every step.
# Set before anything imports torch; child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("dartree", deadline=None)
settings.load_profile("dartree")
