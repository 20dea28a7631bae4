"""Where loops can run, and what happens where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECK = "from dartree_core import compiled; print(compiled.available())"


def told(*lines: str, **environment: str) -> str:
    """What a new Python prints after `lines`."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_they_run_here() -> None:
    assert told(CHECK) == "True"


def test_without_numba_they_do_not() -> None:
    assert told("import sys; sys.modules['numba'] = None", CHECK) == "False"


def test_with_its_compiler_off_they_do_not() -> None:
    assert told(CHECK, NUMBA_DISABLE_JIT="1") == "False"


def test_code_that_does_not_compile_is_left_out() -> None:
    broken = "import numba; numba.njit = lambda *a, **k: (_ for _ in ()).throw(E('no'))"
    assert told("from numba.core.errors import NumbaError as E", broken, CHECK) == "False"


def test_without_openmp_products_are_left_to_libraries() -> None:
    """Loops that run on one thread stay."""
    without = (
        "import torch, dartree_core.compiled, numba, ctypes; ctypes.CDLL = lambda name: object()"
    )
    asked = "print(dartree_core.compiled.shares(), dartree_core.compiled.sharing())"
    assert told(without, asked, CHECK) == "False False\nTrue"


def test_without_instructions_products_are_left_to_libraries() -> None:
    without = "from dartree_core.compiled import cpu; cpu._features = lambda: {}"
    assert told(without, "from dartree_core import compiled; print(compiled.shares())") == "False"


def test_kernels_are_offered_once_they_were_asked_for() -> None:
    offered = (
        "import torch; from dartree_core import compiled; from dartree_core.models import kernels",
        "offer = lambda: kernels.candidates(torch.device('cpu'), torch.float32, torch.float32)",
        "print('panels-fp32' in offer(), compiled.shares(), 'panels-fp32' in offer())",
    )
    assert told(*offered) == "False True True"


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    loaded = "import sys; print('numba' in sys.modules)"
    assert told("import dartree_core.compiled, dartree_core.draft.growing", loaded) == "False"


@pytest.mark.parametrize(
    "smaller",
    [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": "+sse2"}, {"NUMBA_ENABLE_AVX": "0"}],
    ids=str,
)
def test_numba_may_be_told_of_a_smaller_cpu(smaller: dict[str, str], tmp_path: Path) -> None:
    asked = "from dartree_core import compiled; print(compiled.shares())"
    assert told(asked, CHECK, NUMBA_CACHE_DIR=str(tmp_path), **smaller) == "False\nTrue"


def test_passes_that_do_not_compile_are_left_out() -> None:
    broken = "import numba; numba.cfunc = lambda *a, **k: (_ for _ in ()).throw(ValueError('no'))"
    asked = "from dartree_core import compiled; print(compiled.shares())"
    assert told(broken, asked, CHECK) == "False\nTrue"


@pytest.mark.parametrize("error", [RuntimeError("no locator"), OSError(28, "No space left")])
def test_code_that_cannot_be_kept_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from numba import types

    from dartree_core.compiled import jit

    compile_now = jit.njit

    def nowhere(*signature: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise error
        return compile_now(*signature, **options)

    monkeypatch.setattr(jit, "njit", nowhere)
    double = jit.entry(types.float32)(lambda x: x + x)
    assert double(4.0) == 8.0
