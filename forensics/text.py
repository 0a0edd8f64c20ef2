"""Text from strangers, made safe to show: control characters visible, personal data masked, length bounded."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence

_ESCAPES = {0x00: "␀", 0x09: "→\t", 0x0A: "\n", 0x0D: "␍", 0x1B: "␛", 0x7F: "␡"}
_BIDI = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_MASKS = (
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}"), "‹e-mail›"),
    (re.compile(r"\b(?:sk|pk|ghp|gho|xox[bap]|AKIA|AIza)[-_A-Za-z0-9]{16,}"), "‹key›"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"), "‹private key›"),
    (re.compile(r"(?<![\w.,/-])\+?\d{1,3}[ .-]?\(?\d{2,4}\)?(?:[ .-]\d{2,4}){2,4}(?![\w/-])"), "‹phone›"),
)
SLOT = "⟨…⟩"
_WORDS = re.compile(r"\d+|[^\W\d_]+|[⺀-鿿぀-ヿ가-힯]|\S")
_PHONE_DIGITS = 9  # fewer are dates and versions


def visible(text: str) -> str:
    """The text with control, bidirectional and unpaired surrogate characters shown as symbols or `⟨U+XXXX⟩`; line breaks stay."""
    out = []
    for ch in text:
        code = ord(ch)
        if code in _ESCAPES:
            out.append(_ESCAPES[code])
        elif code < 0x20:
            out.append(chr(0x2400 + code))
        elif 0x80 <= code < 0xA0 or code in _BIDI or 0xD800 <= code < 0xE000 or code in (0x2028, 0x2029, 0xFEFF) or unicodedata.category(ch) == "Cf":
            out.append(f"⟨U+{code:04X}⟩")
        else:
            out.append(ch)
    return "".join(out)


def redactions(text: str) -> list[tuple[int, int, str]]:
    """Where e-mail addresses, phone numbers and keys stand: start, stop and what is shown instead; ascending, apart from each other."""
    found = [
        (m.start(), m.end(), mask)
        for pattern, mask in _MASKS
        for m in pattern.finditer(text)
        if mask != "‹phone›" or sum(c.isdigit() for c in m[0]) >= _PHONE_DIGITS
    ]
    out: list[tuple[int, int, str]] = []
    for start, stop, mask in sorted(found, key=lambda f: (f[0], -f[1])):
        if not out or start >= out[-1][1]:
            out.append((start, stop, mask))
    return out


def redact(text: str) -> tuple[str, bool]:
    """The text with e-mail addresses, phone numbers and keys masked; whether anything was."""
    out, at = [], 0
    for start, stop, mask in redactions(text):
        out += [text[at:start], mask]
        at = stop
    return "".join(out) + text[at:], bool(out)


def excerpt(text: str, limit: int = 2000) -> str:
    """At most `limit` characters: head and tail with the count left out between them."""
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    return f"{text[:head]}\n⟨… {len(text) - limit:,} characters …⟩\n{text[len(text) - (limit - head):]}"


def one_line(text: str, limit: int = 100) -> str:
    """A single visible line for tables and messages."""
    flat = visible(text).replace("\n", "⏎").replace("\t", " ")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def skeleton(rows: Sequence[str]) -> str:
    """The words that rows or texts share, in order and spaced as in the first, with `SLOT` where they differ."""
    import numpy as np

    from forensics.matching import shared_blocks

    number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    first = list(_WORDS.finditer(rows[0]))
    shown = [m[0] for m in first] + [SLOT]
    common = [(k, rows[0][m.start() - 1 : m.start()].isspace()) for k, m in enumerate(first)]  # a word's place among those shown, and whether space precedes it
    numbers = np.array([number[word] for word in shown[:-1]] + [-1], np.int32)
    for row in rows[1:]:
        other = np.array([*map(number.__getitem__, _WORDS.findall(row))], np.int32)
        words = numbers[[k for k, _ in common]]
        kept: list[tuple[int, bool]] = []
        at, to = 0, 0
        for a, b, size in [*shared_blocks(words, other).tolist(), (len(common), len(other), 0)]:
            if (at < a or to < b) and (not kept or kept[-1][0] >= 0):
                kept.append((-1, at == a or common[at][1]))
            kept += common[a : a + size]
            at, to = a + size, b + size
        common = kept
    return "".join(" " * (spaced and i > 0) + shown[k] for i, (k, spaced) in enumerate(common))
