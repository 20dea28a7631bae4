"""A stand-in for CUDA graphs that records and replays on the CPU, with the same traps.

A recording is the list of operations that ran, with the very tensors they ran on. Replaying
repeats them on the same memory and nothing else: host values and addresses are frozen, as in a
CUDA graph. So a body that lets a changing Python number in, or reads a tensor that has since
moved, gives wrong results here as it would there. Waiting for the device, or sending it host
data, cannot be recorded, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dartree_core.models.graphs import Body

_WAITS = {
    *("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy"),
    *("nonzero", "equal", "allclose", "unique", "masked_select", "tensor", "as_tensor"),
}


class _NoWaiting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _WAITS:
            raise RuntimeError(f"{func.__name__} cannot be recorded")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, out))
        return out


def _memory(tensors: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in tree_leaves(tensors) if isinstance(t, Tensor)}


class FakeRecorder:
    """Records bodies as lists of operations.

    Args:
        broken: Recording fails, as it may on a device.
    """

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.settled = 0
        self.warm_ups = 0

    def record(self, body: Body) -> Callable[[], None]:
        body()
        self.warm_ups += 1
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        operations = _Operations()
        with _NoWaiting(), operations:
            body()

        def replay() -> None:
            for func, args, kwargs, out in operations.done:
                again = func(*args, **kwargs)
                known = _memory((args, kwargs))
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and not _memory(old) & known:
                        old.copy_(new)

        return replay

    def run(self, body: Body) -> None:
        body()

    def settle(self) -> None:
        self.settled += 1
