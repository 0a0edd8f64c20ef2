"""Ordinary documents out of whatever text lies beside Python, and what accidents make of them.

Everything is read from the interpreter's own library and from installed packages, so a lab can be made anywhere without
a download. Foreign text comes from the incidents' file of Django locale strings (see `tests/attribution/data/NOTICE`).
"""

from __future__ import annotations

import base64
import html
import re
import string
import sysconfig
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

LIB = Path(sysconfig.get_path("stdlib"))
SITE = Path(sysconfig.get_path("purelib"))
DOC = re.compile(r'(?:def|class) [^\n]*:\n +r?"""(.{200,6000}?)"""', re.S)
MOST = 1800  # documents of a source
SOURCES = ("pycode", "tests", "manual", "scicode", "docstrings", "readme", "webcode")


def _files(folder: Path, pattern: str, most: int = 250) -> list[Path]:
    found = sorted(p for p in folder.rglob(pattern) if p.is_file() and 2000 < p.stat().st_size < 200_000 and (folder != LIB or "site-packages" not in p.parts))
    return found[:: max(1, len(found) // most)][:most]


@lru_cache(maxsize=16)
def pieces(source: str) -> tuple[str, ...]:
    """Documents of 400 to 1,700 characters of one source, cut at lines."""
    if source == "manual":
        from pydoc_data.topics import topics

        raw = list(topics.values())
    elif source == "tests":
        raw = [p.read_text("utf-8", "ignore") for p in _files(LIB / "test", "test_*.py")]
    elif source == "scicode":
        raw = [p.read_text("utf-8", "ignore") for name in ("sympy", "scipy", "networkx") for p in _files(SITE / name, "*.py", 120)]
    elif source == "docstrings":
        raw = [
            "\n".join(DOC.findall(p.read_text("utf-8", "ignore"))) for name in ("numpy", "pandas", "scipy", "torch") for p in _files(SITE / name, "*.py", 120)
        ]
    elif source == "readme":
        raw = [p.read_text("utf-8", "ignore") for pattern in ("METADATA", "*.md", "*.rst", "LICENSE*") for p in _files(SITE, pattern)]
    elif source == "webcode":
        raw = [p.read_text("utf-8", "ignore") for pattern in ("*.js", "*.css", "*.h") for p in _files(SITE, pattern, 120)]
    else:
        raw = [p.read_text("utf-8", "ignore") for p in _files(LIB, "*.py") if "test" not in p.parts]
    rng = np.random.default_rng(zlib.crc32(source.encode()))
    out: list[str] = []
    for text in (raw[k] for k in rng.permutation(len(raw))):
        if len(out) >= MOST:
            break
        lines, size, limit = [], 0, int(rng.integers(400, 1700))
        for line in text[:30_000].splitlines():
            lines.append(line[:400])
            size += len(line) + 1
            if size >= limit:
                out.append("\n".join(lines))
                lines, size, limit = [], 0, int(rng.integers(400, 1700))
    return tuple(out[k] for k in rng.permutation(len(out)))


@lru_cache(maxsize=2)
def foreign(mark: str = "") -> tuple[str, ...]:
    """Lines in other languages; with a mark, only those that hold such letters."""
    z = np.load(Path(__file__).parents[2] / "attribution" / "data" / "texts.npz")
    vocab, cut = z["vocab"].tobytes(), z["vocab_offsets"]
    ends = np.cumsum(z["lengths"].astype(np.int64))
    names = [str(n) for n in z["names"]]
    out = []
    for i, s in enumerate(z["source"]):
        if names[int(s)] == "intl-web":
            ids = z["tokens"][ends[i] - z["lengths"][i] : ends[i]]
            out.append(b"".join(vocab[cut[t] : cut[t + 1]] for t in ids).decode("utf-8", "replace"))
    lines = sorted({x for d in out for x in d.splitlines() if len(x) > 20 and "\ufffd" not in x})
    rng = np.random.default_rng(7)
    lines = [lines[k] for k in rng.permutation(len(lines))]
    if mark:
        lines = [x for x in lines if re.search(mark, x)]
    return tuple(lines)


def invented(rng: np.random.Generator, text: str, key: int) -> str:
    """The same text with every word replaced by another of a language made up from `key`: own words, own letters, same order."""
    letters = ("абвгдежзиклмнопрстуфхшыэюя", "αβγδεζηθικλμνξοπρστυφω", "aeiouäöåykkllmnnprsttv")[key % 3]

    def word(found: re.Match[str]) -> str:
        own = np.random.default_rng(zlib.crc32(found[0].lower().encode()) + key)
        return "".join(letters[int(k)] for k in own.integers(0, len(letters), max(2, len(found[0]))))

    return re.sub(r"[A-Za-z]{2,}", word, text)


Maker = Callable[[np.random.Generator, str], str]
WORDS = ["Home", "Help", "Basket (0)", "Contact", "Sign in", "RSS", "Site map", "Terms", "Privacy", "About us", "Cookies", "Wish list", "FAQ", "Careers"]


def _pick(rng: np.random.Generator, pool: tuple[str, ...]) -> str:
    return pool[int(rng.integers(len(pool)))]


def _lines(rng: np.random.Generator, mark: str = "") -> str:
    some = foreign(mark)
    return "\n".join(some[int(k)] for k in rng.choice(len(some), 12, replace=False))


def _template(rng: np.random.Generator, text: str) -> str:
    rows = [" | ".join(rng.permutation(WORDS)), f"Product {rng.integers(1e6)} - {rng.integers(1, 900)} in stock - EUR {rng.integers(1, 900)}.99"]
    rows += [f"<li><a href='/item/{rng.integers(1e5)}'>{WORDS[int(rng.integers(14))]} {rng.integers(100)}</a></li>" for _ in range(16)]
    return "\n".join([*rows, "Add to basket | Compare | Share this page", "We use cookies to improve your visit. Accept all / Reject all"])


def _log(rng: np.random.Generator, text: str) -> str:
    host = [f"10.0.{rng.integers(255)}.{rng.integers(255)}" for _ in range(3)]
    level = ["INFO", "WARN", "ERROR"]
    stamp = lambda: f"2024-0{rng.integers(1, 9)}-1{rng.integers(9)} 0{rng.integers(9)}:{rng.integers(10, 59)}:{rng.integers(10, 59)}"  # noqa: E731
    return "\n".join(
        f"{stamp()} [{level[int(rng.integers(3))]}] {host[int(rng.integers(3))]} request {rng.integers(1e6)} took {rng.integers(900)} ms" for _ in range(16)
    )


def _table(rng: np.random.Generator, text: str) -> str:
    return "\n".join("\t".join(f"{x:.2f}" for x in rng.normal(50, 30, 6)) for _ in range(24))


def _shuffled(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    return " ".join(words[int(k)] for k in rng.permutation(len(words)))


def _markov(rng: np.random.Generator, text: str) -> str:
    """Characters drawn by what follows the last two: text-like, without words."""
    after: dict[str, list[str]] = {}
    for k in range(len(text) - 2):
        after.setdefault(text[k : k + 2], []).append(text[k + 2])
    out = text[:2]
    for _ in range(len(text)):
        out += str(rng.choice(after.get(out[-2:]) or list(string.ascii_lowercase)))
    return out


def _ngrams(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    part = " ".join(words[: int(rng.integers(2, 7))])[: int(rng.integers(8, 60))] or "buy now "
    return (part + " ") * (1100 // (len(part) + 1))


def _markup(rng: np.random.Generator, text: str) -> str:
    style = [f"font-size:{rng.integers(9, 30)}px", "color:#3a3a3a", "margin:0 auto", f"width:{rng.integers(10, 99)}%"]
    parts = text.split()
    body = [f'<span class="c{rng.integers(40)}" style="{style[int(rng.integers(4))]}">{html.escape(html.escape(w))}</span>&nbsp;' for w in parts[:34]]
    return "<div>" + "".join(body) + "</div>"


KINDS: dict[str, Maker] = {
    "mojibake": lambda rng, text: _lines(rng, "[à-ÿ]").encode("utf-8").decode("cp1252", "replace"),
    "mojibake_twice": lambda rng, text: _lines(rng, "[à-ÿ]").encode("utf-8").decode("latin-1").encode("utf-8").decode("latin-1"),
    "mojibake_cyrillic": lambda rng, text: invented(rng, text, 0).encode("cp1251", "ignore").decode("latin-1"),
    "mojibake_utf8_cyrillic": lambda rng, text: invented(rng, text[:600], 0).encode("utf-8").decode("latin-1"),
    "replaced": lambda rng, text: invented(rng, text[:500], 1).encode("utf-8").decode("ascii", "replace"),
    "template": _template,
    "repetition": _ngrams,
    "characters": lambda rng, text: _pick(rng, ("=-", "\\", "_", ". . ", "ha", "0 ", "NaN,")) * 500,
    "base64": lambda rng, text: base64.b64encode(rng.bytes(700)).decode(),
    "packed": lambda rng, text: base64.b85encode(zlib.compress((text * 3).encode())).decode(),
    "hex": lambda rng, text: rng.bytes(400).hex(" " if rng.random() < 0.5 else ":"),
    "percent": lambda rng, text: "&".join(f"q{rng.integers(99)}=" + "".join(f"%{x:02X}" for x in rng.bytes(24)) for _ in range(9)),
    "markup": _markup,
    "binary": lambda rng, text: bytes(rng.integers(0, 256, 400, dtype=np.uint8)).decode("latin-1"),
    "shuffled": _shuffled,
    "lines_reversed": lambda rng, text: " ".join(reversed(text.split())),
    "letters": lambda rng, text: "".join(np.array(list(text))[rng.permutation(len(text))]),
    "markov": _markov,
    "foreign": lambda rng, text: _lines(rng),
    "invented": lambda rng, text: invented(rng, text, 2),
    "greek": lambda rng, text: invented(rng, text[:700], 1),
    "log": _log,
    "table": _table,
    "placeholder": lambda rng, text: "\n".join(_pick(rng, ("N/A", "null", "TODO", "Lorem ipsum dolor sit amet", "[deleted]", "undefined")) for _ in range(60)),
}


def garbage(kind: str, rng: np.random.Generator, pool: tuple[str, ...], n: int) -> list[str]:
    """n documents of one kind, made from ordinary ones where the kind needs them; near copies share a few originals."""
    if kind in {"near", "exact"}:
        some = [_pick(rng, pool) for _ in range(2)]
        out = []
        for k in range(n):
            words = re.split(r"(\s+)", some[k % 2])
            if kind == "near":
                words = [_pick(rng, ("alpha", "beta", str(rng.integers(1e4)), "gamma")) if w.strip() and rng.random() < 0.07 else w for w in words]
            out.append("".join(words))
        return out
    return [KINDS[kind](rng, _pick(rng, pool)) for _ in range(n)]
