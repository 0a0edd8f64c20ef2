"""Small pictures as SVG, made here: bars, stacked shares, and a matrix. Colours are those of the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.reports.base import COLOURS, escape, number, percent


def colour(index: int) -> str:
    """The style sheet's colour of that number."""
    return f"var(--c{index % COLOURS})"


def legend(names: Sequence[str]) -> str:
    """Names beside their colours."""
    return (
        '<div class="legend">' + "".join(f'<span><i class="key" style="background:{colour(i)}"></i>{escape(n)}</span>' for i, n in enumerate(names)) + "</div>"
    )


def bars(values: Mapping[str, float], label: str, error: float | None = None, width: int = 520, height: int = 130, strong: str | None = None) -> str:
    """Vertical bars around zero with names below and the value at the bars' ends; `error` draws a band of that half width.

    Args:
        values: name -> value.
        label: said to those who cannot see it.
        error: half width of the band.
        width, height: of the drawing.
        strong: name of the bar to stand out; all where None.
    """
    if not values:
        return ""
    low, high = min(0.0, *values.values(), -(error or 0)), max(0.0, *values.values(), error or 0)
    scale = (height - 50) / ((high - low) or 1)
    zero, step = 16 + high * scale, (width - 10) / len(values)
    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">']
    if error:
        out.append(f'<rect x="0" y="{zero - error * scale:.1f}" width="{width}" height="{2 * error * scale:.1f}" fill="var(--baseline)"/>')
    for i, (name, v) in enumerate(values.items()):
        top, tall = (zero - v * scale, v * scale) if v >= 0 else (zero, -v * scale)
        fill = colour(0) if strong is None or name == strong else colour(6)
        x = 5 + i * step
        title = f"<title>{escape(name)}: {escape(number(v))}</title>"
        out.append(f'<rect x="{x + step * 0.15:.1f}" y="{top:.1f}" width="{step * 0.7:.1f}" height="{max(tall, 0.8):.1f}" fill="{fill}">{title}</rect>')
        out.append(f'<text x="{x + step / 2:.1f}" y="{height - 4}" text-anchor="middle">{escape(name)}</text>')
        if name == strong or (strong is None and abs(v) > 0.02 * (high - low)):
            out.append(f'<text x="{x + step / 2:.1f}" y="{top - 4 if v >= 0 else top + tall + 11:.1f}" text-anchor="middle">{escape(number(v, 2))}</text>')
    out.append(f'<line class="axis" x1="0" x2="{width}" y1="{zero:.1f}" y2="{zero:.1f}"/></svg>')
    return "".join(out)


def grouped(names: Sequence[str], groups: Mapping[str, Sequence[float]], label: str, height: int = 170) -> str:
    """Shares side by side: for every name one bar per group, named in a legend; the second and later groups are also hatched.

    Args:
        names: [n], below the bars.
        groups: group -> [n] shares.
        label: said to those who cannot see it.
        height: of the drawing.
    """
    width = max(680, 56 * len(names))
    high = max((max(v) for v in groups.values()), default=0.0) or 1.0
    step, slot = width / len(names), width / len(names) / (len(groups) + 0.6)
    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}"><defs>']
    for k in range(len(groups)):
        line = f'<path d="M0 0V5" stroke="var(--card)" stroke-width="{1.2 * k}"/>' if k else ""
        turn = f'patternTransform="rotate({45 * k})"'
        out.append(
            f'<pattern id="g{k}" width="5" height="5" patternUnits="userSpaceOnUse" {turn}><rect width="5" height="5" fill="{colour(k)}"/>{line}</pattern>'
        )
    out.append("</defs>")
    for i, name in enumerate(names):
        for k, (group, values) in enumerate(groups.items()):
            tall = values[i] / high * (height - 42)
            place = f'x="{i * step + (k + 0.3) * slot:.1f}" y="{height - 20 - tall:.1f}" width="{slot * 0.9:.1f}" height="{max(tall, 0.5):.1f}"'
            out.append(f'<rect {place} fill="url(#g{k})"><title>{escape(group)}, from {escape(name)}: {escape(percent(values[i]))}</title></rect>')
        out.append(f'<text x="{(i + 0.5) * step:.1f}" y="{height - 5}" text-anchor="middle">{escape(name)}</text>')
    out.append(f'<text x="2" y="12">{escape(percent(high))}</text><line class="axis" x1="0" x2="{width}" y1="{height - 20}" y2="{height - 20}"/></svg>')
    return legend(list(groups)) + "".join(out)


def stacked(
    shares: Mapping[str, NDArray[np.float64]],
    starts: Sequence[int],
    label: str,
    marks: Sequence[tuple[int, int, str]] = (),
    height: int = 180,
) -> str:
    """Stacked shares along an axis of steps; it stretches with the page, so names and steps stand beside the drawing.

    Args:
        shares: name -> [n], summing to at most 1 over names.
        starts: [n + 1] steps, bounds of the columns.
        label: said to those who cannot see it.
        marks: (start, stop, name) stretches named above.
        height: of the areas in pixels.
    """
    n = len(starts) - 1
    if n < 1 or not shares:
        return ""
    first, last = starts[0], starts[-1]

    def x(step: float) -> float:
        return 100 * (step - first) / max(1, last - first)

    areas, names, base = [], [], np.zeros(n)
    for i, (name, share) in enumerate(shares.items()):
        upper = base + share
        path = [f"{x(starts[k + j]):.2f},{100 * (1 - upper[k]):.1f}" for k in range(n) for j in (0, 1)]
        path += [f"{x(starts[k + 1 - j]):.2f},{100 * (1 - base[k]):.1f}" for k in reversed(range(n)) for j in (0, 1)]
        mean = float(share.mean())
        areas.append(f'<polygon points="{" ".join(path)}" fill="{colour(i)}"><title>{escape(name)}: {escape(percent(mean))} on average</title></polygon>')
        edge = " ".join(f"{x(starts[k + j]):.2f},{100 * (1 - upper[k]):.1f}" for k in range(n) for j in (0, 1))
        areas.append(f'<polyline points="{edge}" fill="none" stroke="var(--card)" vector-effect="non-scaling-stroke"/>')
        if mean > 0.09:
            middle = 100 * (1 - float((base + share / 2)[: max(1, n // 8)].mean()))
            names.append(f'<span class="in" style="top:{middle:.1f}%">{escape(name)} {escape(percent(mean))}</span>')
        base = upper
    above = "".join(
        f'<span class="stretch" style="left:{x(max(a, first)):.2f}%;width:{x(min(b, last)) - x(max(a, first)):.2f}%" title="{escape(name)}: steps {a:,} to {b - 1:,}">{escape(name)}</span>'
        for a, b, name in marks
        if min(b, last) > max(a, first)
    )
    ticks = "".join(f"<span>{s:,}</span>" for s in np.linspace(first, last - 1, 5).astype(int).tolist())
    drawing = f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="{height}" aria-hidden="true">{"".join(areas)}</svg>'
    return f'<div class="stack" role="img" aria-label="{escape(label)}"><div class="above">{above}</div><div class="areas">{drawing}{"".join(names)}</div><div class="ticks">{ticks}</div></div>'


def matrix(rows: Sequence[str], columns: Sequence[str], values: NDArray[np.float64], label: str) -> str:
    """A table whose cells are shaded by their share of the row's largest; zeros are a dot."""
    head = "".join(f'<th scope="col" class="n">{escape(c)}</th>' for c in columns)
    body = []
    for i, name in enumerate(rows):
        most = float(values[i].max()) or 1.0
        cells = "".join(
            f'<td class="n" style="background:color-mix(in srgb,var(--c0) {45 * v / most:.0f}%,transparent)">{escape(number(int(v)) if v else "·")}</td>'
            for v in values[i]
        )
        body.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return f'<div class="scroll"><table aria-label="{escape(label)}"><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
