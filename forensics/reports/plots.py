"""Small pictures as SVG, made here: bars, stacked shares, and a matrix. Colours are those of the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.reports.base import COLOURS, escape, number


def colour(index: int) -> str:
    """The style sheet's colour of that number."""
    return f"var(--c{index % COLOURS})"


def legend(names: Sequence[str]) -> str:
    """Names beside their colours."""
    return (
        '<div class="legend">' + "".join(f'<span><i class="key" style="background:{colour(i)}"></i>{escape(n)}</span>' for i, n in enumerate(names)) + "</div>"
    )


def bars(values: Mapping[str, float], label: str, error: float | None = None, width: int = 520, height: int = 120) -> str:
    """Vertical bars around zero with names below; `error` draws a band of that half width."""
    if not values:
        return ""
    low, high = min(0.0, *values.values(), -(error or 0)), max(0.0, *values.values(), error or 0)
    scale = (height - 34) / ((high - low) or 1)
    zero, step = 10 + high * scale, (width - 10) / len(values)
    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">']
    if error:
        out.append(f'<rect x="0" y="{zero - error * scale:.1f}" width="{width}" height="{2 * error * scale:.1f}" fill="var(--band2)"/>')
    for i, (name, v) in enumerate(values.items()):
        top, tall = (zero - v * scale, v * scale) if v >= 0 else (zero, -v * scale)
        out.append(
            f'<rect x="{5 + i * step + step * 0.15:.1f}" y="{top:.1f}" width="{step * 0.7:.1f}" height="{max(tall, 0.6):.1f}" fill="{colour(0)}"><title>{escape(name)}: {escape(number(v))}</title></rect>'
        )
        out.append(f'<text x="{5 + (i + 0.5) * step:.1f}" y="{height - 6}" text-anchor="middle">{escape(name)}</text>')
    out.append(f'<line class="axis" x1="0" x2="{width}" y1="{zero:.1f}" y2="{zero:.1f}"/></svg>')
    return "".join(out)


def stacked(
    shares: Mapping[str, NDArray[np.float64]],
    starts: Sequence[int],
    label: str,
    marks: Sequence[tuple[int, int, str]] = (),
    width: int = 1040,
    height: int = 190,
) -> str:
    """Stacked shares along an axis of steps.

    Args:
        shares: name -> [n], summing to at most 1 over names.
        starts: [n + 1] steps, bounds of the columns.
        label: said to those who cannot see it.
        marks: (start, stop, name) stretches drawn as brackets above.
    """
    n = len(starts) - 1
    if n < 1 or not shares:
        return ""
    first, last = starts[0], starts[-1]

    def x(step: float) -> float:
        return (step - first) / max(1, last - first) * width

    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">']
    base, top, tall = np.zeros(n), 22, height - 44
    for i, (name, share) in enumerate(shares.items()):
        path = [
            f"{x(starts[k]):.1f},{top + tall * (1 - base[k] - share[k]):.1f} {x(starts[k + 1]):.1f},{top + tall * (1 - base[k] - share[k]):.1f}"
            for k in range(n)
        ]
        path += [f"{x(starts[k + 1]):.1f},{top + tall * (1 - base[k]):.1f} {x(starts[k]):.1f},{top + tall * (1 - base[k]):.1f}" for k in reversed(range(n))]
        out.append(f'<polygon points="{" ".join(path)}" fill="{colour(i)}"><title>{escape(name)}: {100 * float(share.mean()):.1f} %</title></polygon>')
        base = base + share
    for start, stop, name in marks:
        a, b = x(max(start, first)), x(min(stop, last))
        if b > a:
            out.append(
                f'<path d="M{a:.1f} 18V12H{b:.1f}V18" fill="none" stroke="var(--soft)"/><text x="{(a + b) / 2:.1f}" y="9" text-anchor="middle">{escape(name)}</text>'
            )
    for step in np.linspace(first, last, 6).astype(int).tolist():
        anchor = "start" if step == first else "end" if step == last else "middle"
        out.append(f'<text x="{x(step):.1f}" y="{height - 6}" text-anchor="{anchor}">{step:,}</text>')
    return "".join(out) + "</svg>"


def matrix(rows: Sequence[str], columns: Sequence[str], values: NDArray[np.float64], label: str) -> str:
    """A table whose cells are shaded by their share of the row's largest."""
    head = "".join(f"<th scope=col>{escape(c)}</th>" for c in columns)
    body = []
    for i, name in enumerate(rows):
        most = float(values[i].max()) or 1.0
        cells = "".join(
            f'<td class="n" style="background:color-mix(in srgb,var(--c0) {60 * v / most:.0f}%,transparent)">{escape(number(float(v)))}</td>' for v in values[i]
        )
        body.append(f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>")
    return f'<div class="scroll"><table aria-label="{escape(label)}"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
