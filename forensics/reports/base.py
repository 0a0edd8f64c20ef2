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
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from forensics import __version__
from forensics.files import write_text

COLOURS = 8  # --c0 to --c7 of the style sheet


def escape(value: object) -> str:
    """Text for HTML, attributes included; lone surrogates become U+FFFD."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"), quote=True)


def number(value: object, digits: int = 4) -> str:
    """A number as people read it; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2e}" if value and (abs(value) >= 1e6 or abs(value) < 1e-3) else f"{value:,.{digits}f}".rstrip("0").rstrip(".")


def plain(value: Any) -> Any:
    """JSON values: NaN and infinity become null, numbers keep six digits."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
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
        self._sections: list[tuple[str, str, str]] = []
        self._data: dict[str, Any] = {}

    def section(self, name: str, heading: str, body: str) -> None:
        """Add a section; `body` is HTML."""
        self._sections.append((name, heading, body))

    def data(self, name: str, value: Any) -> None:
        """Data for the script, reached as `data-<name>`."""
        self._data[name] = plain(value)

    def chart(self, name: str, label: str, spec: Mapping[str, Any]) -> str:
        """A place for a chart and its data.

        Args:
            name: unique on the page.
            label: said to those who cannot see it.
            spec: x (step, tokens, time), series (label, values, color), bands, marks, unit, height, log.
        """
        self.data(name, spec)
        return f'<div class="chart" role="img" aria-label="{escape(label)}" data-chart="{escape(name)}"></div>'

    def table(self, name: str, label: str, columns: Sequence[Mapping[str, Any]], *, sort: int = -1, down: bool = True, opens: str | None = None) -> str:
        """A table that sorts, filters and pages.

        Args:
            name: unique on the page.
            label: what its rows are.
            columns: name, label, values, and any of number, choose, hidden, title.
            sort, down: column sorted by at first, and direction.
            opens: column whose value is the document shown for a row.
        """
        rows = len(columns[0]["values"]) if columns else 0
        if not rows:
            return '<p class="none">No rows.</p>'
        self.data(name, {"label": label, "rows": rows, "columns": list(columns), "sort": sort, "down": down, "open": opens})
        return f'<div data-table="{escape(name)}"></div>'

    def html(self) -> str:
        """The whole file."""
        style = "\n".join(_template(n) for n in ("uplot.css", "style.css"))
        scripts = [_template("uplot.js"), _template("app.js")]
        hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'; form-action 'none'"
        links = "".join(f'<a href="#{escape(n)}">{escape(h)}</a>' for n, h, _ in self._sections if h)
        body = "".join(
            f'<section id="{escape(n)}" aria-label="{escape(h or n)}">{f"<h2>{escape(h)}</h2>" if h else ""}{b}</section>' for n, h, b in self._sections
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


def items(lines: Iterable[object], empty: str = "none") -> str:
    """A list of sentences."""
    found = [f"<li>{escape(line)}</li>" for line in lines]
    return f'<ul class="tight">{"".join(found)}</ul>' if found else f'<p class="none">{escape(empty)}</p>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values beside each other; rows without a value are left out."""
    return '<dl class="facts">' + "".join(f"<dt>{escape(k)}</dt><dd>{escape(number(v))}</dd>" for k, v in rows if v not in (None, "")) + "</dl>"


def code(text: str) -> str:
    """A command to copy."""
    return f'<div class="code"><pre tabindex="0">{escape(text)}</pre><button type="button" data-copy>Copy</button></div>'


def static_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A small table; numbers are right-aligned."""
    body = "".join("<tr>" + "".join(_cell(v) for v in row) + "</tr>" for row in rows)
    title = f"<caption class='soft small'>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{"".join(f"<th scope=col>{escape(h)}</th>" for h in head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="n">{escape(number(value))}</td>'
    return f'<td class="wrap">{escape("" if value is None else value)}</td>'


def card(body: str, cls: str = "") -> str:
    """A framed block of HTML."""
    return f'<div class="card {escape(cls)}">{body}</div>'
