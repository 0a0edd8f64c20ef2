"""Who compiles the kernels of a machine's first run: processes beside the command take those that it comes to last.

numba compiles a kernel where it is first called, in a third of a second on average and one at a time in a process, and keeps it in its cache: beside the
module, in `NUMBA_CACHE_DIR`, or in the user's cache folder. Other processes fill that cache meanwhile. They go through `kernels.txt`, which lists kernels in
the order of first use, from its end, so that the command finds the later half compiled. Two that compile the same kernel write the same file. The list is
advice: a kernel that is missing compiles where it is called, one that is no longer called costs a helper a moment.

Run as a program (`python -m forensics.compiled USE FIRST STEP`) it is such a helper. It ends when its standard input does: with the command,
however that ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from numba import types
from numba.core import event

USES = ("ids", "text", "replay")
"""What kernels are called for: an audit of token ids, one of texts, a replay."""
SECONDS = {"ids": 45.0, "text": 45.0, "replay": 60.0, "curves": 10.0}
"""What the kernels of a use take one core to compile (AMD EPYC, numba 0.68); those of curves are one large one, which is not shared out."""
_TYPE = re.compile(r"(readonly )?(\w+)(\[[:, 1]+\])?")


def listed(uses: Sequence[str]) -> list[tuple[str, str, str]]:
    """Module, name and types of the kernels of any of these uses, in the order of first use."""
    lines = resources.files("forensics").joinpath("kernels.txt").read_text().splitlines()
    rows = [line.split("  ") for line in lines if line and not line.startswith("#")]
    return [(*name.rsplit(".", 1), signature) for of, name, signature in rows if set(uses) & set(of.split(","))]  # type: ignore[misc]


def types_of(signature: str) -> tuple[types.Type, ...]:
    """Types as numba's: `uint32[::1], int64` is an array in C order and a number."""
    return tuple(_type(*found.groups()) for found in _TYPE.finditer(signature))


def _type(locked: str | None, name: str, shape: str | None) -> types.Type:
    kind = getattr(types, {"bool": "boolean"}.get(name, name))
    return kind if shape is None else types.Array(kind, shape.count(":") - shape.count("::"), "C" if "::1" in shape else "A", readonly=bool(locked))


def signature_of(arguments: Sequence[types.Type]) -> str:
    """What `types_of` reads."""
    return ", ".join(_written(t) for t in arguments)


def _written(kind: Any) -> str:
    if not isinstance(kind, types.Array):
        return str(types.unliteral(kind))
    shape = ", ".join([":"] * (kind.ndim - 1) + ["::1" if kind.layout == "C" else ":"])
    return f"{'' if kind.mutable else 'readonly '}{kind.dtype}[{shape}]"


def compile_listed(rows: Sequence[tuple[str, str, str]]) -> None:
    """Compile kernels, or load them from the cache."""
    for module, name, signature in rows:
        with contextlib.suppress(Exception):  # advice only: what is wrong with a kernel shows where it is called
            getattr(importlib.import_module(module), name).compile(types_of(signature))


class Ahead(event.Listener):  # type: ignore[misc, unused-ignore]
    """Starts helpers when this process compiles its first kernel of ours: on a machine whose cache is full that never happens.

    Args:
        uses: of `SECONDS`, what this command will call kernels for.
        helpers: processes beside this one.
        told: called once, when the first kernel compiles, with about how long all will take [s].
    """

    def __init__(self, uses: Sequence[str], helpers: int, told: Callable[[float], None]) -> None:
        self.uses, self.told, self._met = uses, told, False
        self.helpers = min(helpers, len(listed(uses)))
        self._running: list[subprocess.Popen[bytes]] = []

    def on_start(self, event: Any) -> None:
        if self._met or not event.data["dispatcher"].py_func.__module__.startswith("forensics."):
            return
        self._met = True
        self.told(max(SECONDS[use] for use in self.uses) / (1 + self.helpers))
        for first in range(self.helpers):
            command = [sys.executable, "-P", "-m", "forensics.compiled", ",".join(self.uses), str(first), str(self.helpers)]
            with contextlib.suppress(OSError):  # no process to be had: this one compiles all
                self._running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def on_end(self, event: Any) -> None:
        """Nothing: the helpers go on."""

    def begin(self) -> None:
        """Watch from now on."""
        event.register("numba:compile", self)

    def fill(self) -> None:
        """Have all kernels compiled before processes begin that would each compile them."""
        compile_listed(listed(self.uses))

    def close(self) -> None:
        """Watch no more, and end helpers that are still at work."""
        event.unregister("numba:compile", self)
        for process in self._running:
            process.kill()
            process.wait()


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    compile_listed(listed(sys.argv[1].split(","))[::-1][int(sys.argv[2]) :: int(sys.argv[3])])
