"""One self-contained page: sections, data and scripts in a file that makes no request.

Everything a stranger wrote is escaped here or set as text by the script. The content policy allows nothing from
outside and only the scripts whose hash it names. Charts are drawn by uPlot 1.6.32 (MIT, 51 kB, no dependencies): the
smallest maintained library that draws tens of thousands of points without a pause and inlines as one file.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from forensics import __version__
from forensics.files import write_text
from forensics.text import visible

COLOURS = 8  # --c0 to --c7 of the style sheet
_UNSEEN = re.compile("[^\\n\\t -~\\u00a1-\\u00ac\\u00ae-\\u060f\\u2010-\\u2027\\u3000-\\ud7ff]")  # where a closer look is worth it


def shown(text: str) -> str:
    """Text whose control, bidirectional and unpaired surrogate characters are visible; the others as they are."""
    return visible(text.replace("\t", " ")) if _UNSEEN.search(text) else text


def escape(value: object) -> str:
    """Text for HTML, attributes included."""
    return html.escape(shown(str(value)), quote=True)


def number(value: object, digits: int | None = None) -> str:
    """A number as people read it, with a true minus; empty for None. Without `digits` four significant ones are kept."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if digits is None and value and (size >= 1e7 or size < 1e-3):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    places = digits if digits is not None else 0 if size >= 1000 else 1 if size >= 100 else 3 if size >= 1 else 4
    text = f"{value:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if digits is None and "." in text else text).replace("-", "−")


def percent(share: float | None) -> str:
    """A share in per cent."""
    if share is None:
        return ""
    return "< 0.1 %" if 0 < share < 0.0005 else "0 %" if share == 0 else "100 %" if share == 1 else f"{number(100 * share, 1)} %"


def plain(value: Any) -> Any:
    """JSON values: NaN and infinity become null, numbers keep six digits, and all those before the point."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value) if abs(value) >= 1e6 else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return shown(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


class Page:
    """A report under construction.

    Args:
        title: of the window and the first line.
        subject: what it is about, beside the title.
    """

    def __init__(self, title: str, subject: str) -> None:
        self.title, self.subject = title, subject
        self._sections: list[tuple[str, str, str, bool]] = []
        self._data: dict[str, Any] = {}

    def section(self, name: str, heading: str, body: str, *, titled: bool = True) -> None:
        """Add a section; `body` is HTML; `titled` shows its heading, which the navigation names either way."""
        self._sections.append((name, heading, body, titled))

    def data(self, name: str, value: Any) -> None:
        """Data for the script, reached as `data-<name>`."""
        self._data[name] = plain(value)

    def chart(self, name: str, label: str, spec: Mapping[str, Any]) -> str:
        """A place for a chart and its data.

        Args:
            name: unique on the page.
            label: said to those who cannot see it.
            spec: x (step, and tokens or time), series (label, values, color, dash, width, quiet), between (pairs of series
                with the trend's colour between them), bands (start, stop and color or hatch), marks (step, color, dash,
                label, tick), height, log, percent.
        """
        self.data(name, spec)
        said = f"{label}. {_spoken(spec)} Arrow keys move the cursor."
        return f'<div class="chart" role="img" tabindex="0" aria-label="{escape(said)}" data-chart="{escape(name)}" style="min-height:{int(spec.get("height", 190)) + 24}px"></div>'

    def table(
        self,
        name: str,
        label: str,
        columns: Sequence[Mapping[str, Any]],
        *,
        sort: str | None = None,
        down: bool = True,
        opens: str | None = None,
        into: str = "document",
        rows: int = 25,
    ) -> str:
        """A table that sorts, filters and pages; columns without any value are left out.

        Args:
            name: unique on the page.
            label: what its rows are.
            columns: name, label, values, and any of number, choose, hidden, title, format (percent, p, key).
            sort, down: column sorted by at first, and direction.
            opens: column whose value is the document shown for a row, in the element with the id `into`.
            rows: on a page.
        """
        count = len(columns[0]["values"]) if columns else 0
        if not count:
            return '<p class="none">No rows.</p>'
        kept = [c for c in columns if c.get("hidden") or any(v is not None and v != "" and v != [] for v in c["values"])]
        at = next((i for i, c in enumerate(kept) if c["name"] == sort), -1)
        self.data(name, {"label": label, "rows": count, "columns": kept, "sort": at, "down": down, "open": opens, "into": into, "page": rows})
        return f'<div data-table="{escape(name)}"></div>'

    def html(self) -> str:
        """The whole file."""
        style = "\n".join(_template(n) for n in ("uplot.css", "style.css"))
        scripts = [_template(f"{n}.js") for n in ("uplot", "page", "charts", "tables", "documents")]
        hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'; form-action 'none'"
        links = "".join(f'<a href="#{escape(n)}">{escape(h)}</a>' for n, h, _, _ in self._sections)
        body = "".join(
            f'<section id="{escape(n)}" aria-label="{escape(h)}">{f"<h2>{escape(h)}</h2>" if titled else ""}{b}</section>' for n, h, b, titled in self._sections
        )
        blocks = "".join(f'<script type="application/json" id="data-{escape(n)}">{_json(v)}</script>' for n, v in self._data.items())
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="generator" content="forensics {__version__}"><title>{escape(self.title)} - {escape(self.subject)}</title>'
            f'<style>{style}</style></head><body><a class="skip" href="#main">to the content</a><header class="top"><span class="what">{escape(self.title)}</span>'
            f'<span class="run">{escape(self.subject)}</span><span class="room"></span><button id="theme" type="button">Dark</button></header>'
            f'<div class="layout"><nav class="side" aria-label="sections">{links}</nav><main id="main">{body}</main></div>'
            f"{blocks}{''.join(f'<script>{s}</script>' for s in scripts)}</body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the file atomically."""
        write_text(path, self.html())
        return path


def _template(name: str) -> str:
    return resources.files("forensics.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _spoken(spec: Mapping[str, Any]) -> str:
    """The drawn lines in words: lowest, highest and last value of each."""
    said = []
    for line in spec["series"]:
        values = [float(v) for v in line["values"] if v is not None and math.isfinite(v)]
        if values and not line.get("quiet"):
            said.append(f"{line['label']}: {number(min(values))} to {number(max(values))}, last {number(values[-1])}.")
    return " ".join(said)


def prose(text: object) -> str:
    """A sentence for HTML; what stands in backticks is shown as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def items(lines: Iterable[object], empty: str = "none") -> str:
    """A list of sentences."""
    found = [f"<li>{prose(line)}</li>" for line in lines]
    return f'<ul class="tight">{"".join(found)}</ul>' if found else f'<p class="none">{escape(empty)}</p>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values beside each other; rows without a value are left out."""
    known = [f"<dt>{escape(k)}</dt><dd>{prose(number(v))}</dd>" for k, v in rows if v not in (None, "")]
    return f'<dl class="facts">{"".join(known)}</dl>' if known else ""


def code(text: str) -> str:
    """A command to copy."""
    return f'<div class="code"><pre tabindex="0">{escape(text)}</pre><button type="button" data-copy>Copy</button></div>'


def static_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A small table. Columns of numbers are right-aligned with equal digits; columns without any value are left out."""
    listed = [list(row) for row in rows]
    kept = [i for i in range(len(head)) if any(row[i] not in (None, "") for row in listed)]
    shown = {i: _column([row[i] for row in listed]) for i in kept}
    top = "".join(f'<th scope="col"{_right(shown[i][1])}>{escape(head[i])}</th>' for i in kept)
    body = "".join("<tr>" + "".join(_cell(shown[i][0][n], shown[i][1]) for i in kept) + "</tr>" for n in range(len(listed)))
    title = f'<caption class="soft small">{escape(caption)}</caption>' if caption else ""
    return f'<div class="scroll"><table class="few">{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _column(values: Sequence[object]) -> tuple[list[str], bool]:
    """Texts of a column, and whether it holds numbers."""
    known = [v for v in values if v is not None]
    if not known or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known):
        return ["" if v is None else str(v) for v in values], bool(known) and all(str(v).endswith(" %") for v in known)
    sizes = [abs(v) for v in known if isinstance(v, float) and math.isfinite(v)]
    digits = None if not sizes else 0 if max(sizes) >= 1000 else 1 if max(sizes) >= 100 else 2 if max(sizes) >= 1 else 4
    return [number(v, digits) if isinstance(v, float) else number(v) for v in values], True


def _right(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(text: str, numeric: bool) -> str:
    cls = "n" if numeric else "wrap" if len(text) > 30 else ""
    return f'<td class="{cls}">{prose(text)}</td>' if cls else f"<td>{prose(text)}</td>"


def card(body: str, cls: str = "") -> str:
    """A framed block of HTML."""
    return f'<div class="card {escape(cls)}">{body}</div>'
