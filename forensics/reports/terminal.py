"""Curves as text: a sparkline for a table cell, a small plot for a screen.

Nothing here is said by colour. Where a terminal cannot print block characters, `plain=True` uses ASCII. Values that are no number leave a blank; a
column that stands for many records shows their extreme furthest from the column's median, so that a one-step spike stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"


def columns(values: Floats, width: int) -> Floats:
    """One value per column of text: of the records that share it, the one furthest from their median.

    Args:
        values: float64 [n].
        width: columns; fewer where there are fewer records.

    Returns:
        float64 [min(n, width)]; NaN where all of a column's records are no number.
    """
    if not len(values):
        return np.zeros(0)
    out = np.full(min(width, len(values)), np.nan)
    for i, part in enumerate(np.array_split(np.asarray(values, dtype=np.float64), len(out))):
        known = part[np.isfinite(part)]
        if len(known):
            out[i] = known[int(np.argmax(np.abs(known - np.median(known))))]
    return out


def limits(values: Floats, share: float = 0.0) -> tuple[float, float]:
    """Lowest and highest value shown; `share` of the records may lie above (start-up losses flatten everything else)."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(np.quantile(known, 1 - share))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def sparkline(values: Sequence[float] | Floats, width: int = 40, plain: bool = False) -> str:
    """A curve in one line.

    Args:
        values: in order.
        width: columns.
        plain: ASCII only.
    """
    cells = columns(np.asarray(values, dtype=np.float64), width)
    low, high = limits(cells)
    marks = PLAIN if plain else BLOCKS
    level = np.clip((cells - low) / (high - low), 0.0, 1.0)
    return "".join(" " if not np.isfinite(v) else marks[min(len(marks) - 1, int(v * len(marks)))] for v in level)


def plot(
    x: Sequence[float] | Floats,
    y: Sequence[float] | Floats,
    *,
    width: int = 72,
    height: int = 8,
    marks: Sequence[float] = (),
    plain: bool = False,
    clip: float = 0.0,
) -> list[str]:
    """A curve as a few lines of text, with an axis and marks below it.

    Args:
        x: position of each record, increasing.
        y: value of each record.
        width, height: of the drawing, without the axis labels.
        marks: positions on x that get a `^` under the axis.
        plain: ASCII only.
        clip: share of the highest records that may be cut off at the top.

    Returns:
        Lines: the drawing with values at the left, the axis, the marks where there are any.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not len(ys):
        return ["(no records)"]
    cells = columns(ys, width)
    low, high = limits(ys if clip else cells, clip)
    steps = np.clip((cells - low) / (high - low), 0.0, 1.0) * (height - 1e-9)
    blocks = PLAIN if plain else BLOCKS
    labels = [f"{high - (high - low) * i / max(1, height - 1):.4g}" for i in range(height)]
    pad = max(len(label) for label in labels)
    bar, dash, corner = ("|", "-", "+") if plain else ("│", "─", "└")
    lines = []
    for row in range(height - 1, -1, -1):
        text = "".join(_cell(v, row, blocks) for v in steps)
        lines.append(f"{labels[height - 1 - row].rjust(pad)} {bar}{text.rstrip()}")
    lines.append(" " * pad + f" {corner}" + dash * len(cells))
    left, right = f"{xs[0]:.15g}", f"{xs[-1]:.15g}"
    lines.append(" " * (pad + 2) + left + right.rjust(max(len(right) + 2, len(cells) - len(left))))
    if len(marks):
        under = [" "] * len(cells)
        for m in marks:
            i = int(np.searchsorted(xs, m) * len(cells) / len(xs))
            under[min(i, len(cells) - 1)] = "^"
        lines.append(" " * (pad + 2) + "".join(under).rstrip())
    return lines


def _cell(level: float, row: int, blocks: str) -> str:
    """The character of a column in a row: filled below the curve's end, empty above."""
    if not np.isfinite(level) or level < row:
        return " "
    part = level - row
    return blocks[-1] if part >= 1 else blocks[min(len(blocks) - 1, int(part * len(blocks)))]


LOW, HIGH = (153, 111, 69), (223, 215, 208)  # of the 256 colours: stronger and stronger blue, and orange
STRONG = 0.5  # strength from which a piece is also bracketed, so that nothing is said by colour alone


def heat_text(pieces: Sequence[tuple[str, float | None]], colour: bool) -> str:
    """Text whose pieces are coloured by strength; the strongest stand in guillemets.

    Args:
        pieces: text, made visible already, and strength from -1 to 1; None where nothing is known.
        colour: whether escape sequences may be written.
    """
    out = []
    for text, strength in pieces:
        if strength is None or not text:
            out.append(text)
            continue
        said = f"«{text}»" if strength >= STRONG else text
        level = 0 if abs(strength) < 0.2 else 1 if abs(strength) < STRONG else 2 if abs(strength) < 0.85 else 3
        if colour and level:
            code = (HIGH if strength > 0 else LOW)[level - 1]
            said = "\n".join(f"\033[38;5;16;48;5;{code}m{line}\033[0m" if line else "" for line in said.split("\n"))
        out.append(said)
    return "".join(out)
