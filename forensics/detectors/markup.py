"""What is left of a page's frame: tags, style rules, tracking scripts, wiki templates, cookie banners, navigation.

A line is markup when most of it is tags of HTML, entities, or one of the shapes below; a region is a run of such lines, a few others between them allowed. Code
that handles HTML is told from HTML by that share, and generics or comparisons (`vector<int>`, `a < b`) by the names of the elements. Boilerplate phrases in
several languages are
data (`data/boilerplate.txt`); a line that consists of them is evidence even where it stands alone.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.anchors import Strings
from forensics.detectors.base import Region, Text, text_detector
from forensics.detectors.lines import ENTITY, HIGH, START, STOP, TAG

ELEMENTS = [
    "a",
    "abbr",
    "acronym",
    "address",
    "applet",
    "area",
    "article",
    "aside",
    "audio",
    "b",
    "base",
    "bdi",
    "bdo",
    "big",
    "blink",
    "blockquote",
    "body",
    "br",
    "button",
    "canvas",
    "caption",
    "center",
    "cite",
    "code",
    "col",
    "colgroup",
    "dd",
    "del",
    "details",
    "dialog",
    "div",
    "dl",
    "dt",
    "em",
    "embed",
    "fieldset",
    "figcaption",
    "figure",
    "font",
    "footer",
    "form",
    "frame",
    "frameset",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "input",
    "ins",
    "kbd",
    "label",
    "legend",
    "li",
    "link",
    "main",
    "map",
    "mark",
    "marquee",
    "meta",
    "meter",
    "nav",
    "nobr",
    "noscript",
    "object",
    "ol",
    "optgroup",
    "option",
    "p",
    "param",
    "path",
    "picture",
    "pre",
    "progress",
    "q",
    "rect",
    "rp",
    "rt",
    "ruby",
    "s",
    "samp",
    "script",
    "section",
    "select",
    "small",
    "source",
    "span",
    "strike",
    "strong",
    "style",
    "sub",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "template",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "time",
    "title",
    "tr",
    "track",
    "tt",
    "u",
    "ul",
    "use",
    "var",
    "video",
    "wbr",
]
TAGS = re.compile(rf"</?(?:{'|'.join(ELEMENTS)})(?:\s[^<>]{{0,500}})?/?>|<!--|-->|<!DOCTYPE|&(?:[a-z]{{2,8}}|#\d{{2,5}}|#x[0-9a-f]{{2,5}});".encode(), re.I)
STYLE = re.compile(
    rb"(?:^|[\s;{])(?:margin|padding|color|background|display|float|width|height|font|border|position|text-align|line-height|overflow|z-index|top|left|right|bottom|visibility|clear|cursor|opacity|list-style)"
    rb"(?:-[a-z-]+)?\s*:\s*[^;{}\[\n]{1,80}(?:;|\}|$)",
    re.M,
)
SCRIPT = re.compile(
    rb"dataLayer|\bgtag\(|_gaq|googletag|fbq\(|ga\('|document\.write|window\.\w+\s*=\s*window\.\w+|addthis|adsbygoogle|jQuery\(document\)|\$\(document\)|onclick=|createElement\('script'\)|CDATA\["
)
WIKI = re.compile(
    rb"\{\{[^\s{}|][^{}|\n]{0,80}\|[^{}\n]{0,300}\}\}"
    rb"|\[\[(?:File|Image|Category|Datei|Fichier|Archivo|Bild|Kategorie)[^\]\n]{2,200}\]\]|\{\||\|\}|^\|-|^!\s?[a-z]+=|<ref[ />]",
    re.I | re.M,
)
PROLOG = re.compile(rb"^[ \t]*<(?:(?:!DOCTYPE|\?xml)[^<>\n]{0,300}|!--[^<>\n]{0,300}--)>[ \t\r]*$", re.I | re.M)  # lines of nothing else
CODED = re.compile(rb"[^<>\"'\n]{0,80}[\"'].*[\"'][\s;,)+.\]}\\]*")
GOES_ON = bytes(range(0x80, 0xC0))  # bytes of a character but for its first
# what READMEs may hold: Markdown has no other way to centre, to size a picture, to fold
ALLOWED = frozenset(
    b"a b br code details div em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p picture source span strong sub summary sup table tbody td th thead tr ul video".split()
)
ATTRIBUTES = frozenset(b"align alt colspan height href id media name open rel rowspan src srcset target title type valign width".split())
MARKDOWN = re.compile(rb"^(?:#{1,6} \S|```|~~~)|\]\(\S", re.M)
LONG = 250  # bytes of a region from which it matters
LEFT = 0.1  # what of such a region in Markdown counts
# what stands where these match
STYLE_NEEDS = (b"margin", b"padding", b"color:", b"display:", b"width:", b"font-", b"!important")
SCRIPT_NEEDS = (
    b"dataLayer", b"gtag(", b"_gaq", b"googletag", b"fbq(", b"ga('", b"document.write", b"window.", b"addthis", b"adsbygoogle", b"jQuery(", b"$(document",
    b"onclick=", b"createElement", b"CDATA[",
)  # fmt: skip
WIKI_NEEDS = (b"{{", b"[[", b"{|", b"|}", b"|-", b"<ref")
NEAR = 3  # other lines allowed between two of a region
SHARE = 0.5
RULES = 0.15  # of a line with style rules they make up so much: `{ display: x }` is a value in a script, too


@functools.cache
def _listed() -> list[bytes]:
    """Boilerplate phrases, of small letters."""
    text = resources.files("forensics.detectors").joinpath("data", "boilerplate.txt").read_text(encoding="utf-8")
    return [line.strip().encode().lower() for line in text.split("\n") if line.strip() and not line.startswith("#")]


@functools.cache
def phrases() -> re.Pattern[bytes]:
    """One pattern of all boilerplate phrases; those that begin alike stand together, so that most places are passed by their first byte."""
    return re.compile(_pattern(sorted(_listed(), key=len, reverse=True)))


def _pattern(words: list[bytes]) -> bytes:
    """A pattern that tries the words in this order at each place, grouped by what they begin with."""
    by_first: dict[bytes, list[bytes]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    parts = []
    for first, rests in by_first.items():
        head = rb"\s+" if first == b" " else re.escape(first)
        parts.append(head + _pattern(rests) if first else b"")
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"


def share_of_markup(line: bytes, covered: int, *, styled: bool, scripted: bool, wiki: bool) -> float:
    """Share of a line's visible bytes that are tags, entities, style rules, scripts or wiki templates.

    Args:
        line: with its line feed or without.
        covered: bytes of it that `TAGS` matches.
        styled, scripted, wiki: whether `STYLE`, `SCRIPT` and `WIKI` match in it.
    """
    body = line.strip()
    if len(body) < 4:
        return 0.0
    if PROLOG.match(body):
        return 1.0
    if scripted and body.count(b"(") + body.count(b"=") + body.count(b";") >= 3:
        return 1.0
    if styled:
        rules = [m.end() - m.start() for m in STYLE.finditer(body)]
        if sum(rules) >= RULES * len(body) and (b"{" in body or b"}" in body or b"!important" in body or len(rules) >= 2):
            return 1.0
    if _coded(body):
        return 0.0
    signs = max(1, len(body.translate(None, GOES_ON)))  # bytes that are no UTF-8 may be all of this kind
    return (covered + (sum([m.end() - m.start() for m in WIKI.finditer(body)]) if wiki else 0)) / signs


def _coded(body: bytes) -> bool:
    """Whether a line is a statement that writes a string, or a part of one."""
    return body[:1] != b"<" and CODED.fullmatch(body) is not None


def allowed(piece: bytes) -> bool:
    """Whether a piece is nothing but tags such as Markdown leaves to HTML: without classes, styles, scripts and templates."""
    if b"{{" in piece or SCRIPT.search(piece) or STYLE.search(piece):
        return False
    for m in TAGS.finditer(piece):
        tag = m[0]
        if tag[:1] == b"<" and tag[:2] != b"<!":
            words = re.findall(rb"[\w:-]+(?=\s*=)", re.sub(rb"\"[^\"]*\"|'[^']*'", b"", tag))
            if re.match(rb"</?(\w+)", tag)[1].lower() not in ALLOWED or any(w.lower() not in ATTRIBUTES for w in words):  # type: ignore[index]
                return False
    return True


def boilerplate(line: bytes) -> float:
    """Share of a line's words that belong to boilerplate phrases."""
    body = line.strip().lower()
    words = len(re.findall(rb"[\w\x80-\xff]+", body))
    found = list(phrases().finditer(body))
    inside = sum(len(re.findall(rb"[\w\x80-\xff]+", m[0])) for m in found)
    covered = sum(len(m[0]) for m in found)
    return max(inside / words, covered / len(body)) if len(found) >= 2 and words else 0.0


@functools.cache
def _phrase_words() -> NDArray[np.bool_]:
    """Bool [2**18]: hashes of the words of boilerplate phrases, cut."""
    from forensics.detectors.lines import lines_of
    from forensics.detectors.rows import MOST_WORDS, word_hashes

    raw = np.frombuffer(bytearray(b"\n".join(_listed())), np.uint8)
    hashes, counts, _ = word_hashes(raw, lines_of(raw), MOST_WORDS)
    known = np.zeros(1 << 18, np.bool_)
    for h, n in zip(hashes, counts):
        known[h[:n] & np.uint32(len(known) - 1)] = True
    return known


@functools.cache
def _strings() -> tuple[Strings, Strings]:
    """Boilerplate phrases, and what style rules, scripts and wiki templates need."""
    needs = [(word, kind) for kind, words in enumerate((STYLE_NEEDS, SCRIPT_NEEDS, WIKI_NEEDS)) for word in words]
    return Strings.of([(w, 0) for w in _listed()], lower=True), Strings.of(needs)


def framed_lines(raw: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.intp]:
    """Lines with at least two boilerplate phrases most of whose words stand in such phrases: few, and cheaply found."""
    from forensics.detectors.rows import MOST_WORDS, known_lines

    lower = np.frombuffer(bytearray(raw.tobytes().lower()), np.uint8)  # writable, as every text: one compiled form of the kernel
    few = known_lines(lower, lines, _phrase_words(), 4, MOST_WORDS).nonzero()[0]
    kept: NDArray[np.intp] = few[_strings()[0].places(lower, lines[few])[:, 0] >= 2]
    return kept


def _matched(text: Text, pattern: re.Pattern[bytes]) -> set[int]:
    """Lines in which a pattern matches."""
    hits = [m.end() - 1 for m in pattern.finditer(text.bytes)]  # a match may begin with the line feed before
    return set((np.searchsorted(text.lines[:, START], hits, "right") - 1).tolist())


@text_detector("markup", version=3, screen="markup")
def markup(text: Text) -> list[Region]:
    """Regions of markup left-overs, and single lines of boilerplate."""
    from forensics.detectors.markscan import names, tag_bytes

    t, raw = text.lines, text.bytes
    needs = _strings()[1].places(text.raw, np.array([[0, len(raw)]]), 3)[0] > 0
    few = set(framed_lines(text.raw, t).tolist())
    styled, scripted, wiki = (_matched(text, p) if needed else set() for p, needed in zip((STYLE, SCRIPT, WIKI), needs.tolist()))
    prolog = _matched(text, PROLOG) if b"<!" in raw or b"<?" in raw else set()
    special = t[:, HIGH] * 2 > t[:, TAG]  # letters of several bytes: `tag_bytes` counts bytes
    special &= (t[:, TAG] + t[:, ENTITY]) * 8 > t[:, STOP] - t[:, START]
    special[list(few | styled | scripted | wiki | prolog)] = True
    covered, enough = tag_bytes(text.raw, t, special, SHARE, *names())
    likely = (enough | special).nonzero()[0]
    marked: list[tuple[int, int]] = []
    out: list[Region] = []
    last = -NEAR - 2
    for k, tags, whole, (start, stop) in zip(likely.tolist(), covered[likely].tolist(), enough[likely].tolist(), t[likely][:, [START, STOP]].tolist()):
        line = raw[start:stop]
        if k in few and boilerplate(line) >= 0.4:
            out.append(Region(start, stop, f"boilerplate {line.strip()[:60].decode('utf-8', 'replace')!r}"))
        elif _coded(line.strip()) if whole else share_of_markup(line, tags, styled=k in styled, scripted=k in scripted, wiki=k in wiki) < SHARE:
            continue
        if marked and k - last <= NEAR:
            marked[-1] = (marked[-1][0], stop)
        else:
            marked.append((start, stop))
        last = k
    marked = [(a, b) for a, b in marked if b - a >= 60]
    readme = any(b - a >= LONG for a, b in marked) and len(MARKDOWN.findall(raw)) >= 3
    out += [Region(a, b, "mark-up, style rules or scripts", LEFT if readme and allowed(raw[a:b]) else 1.0) for a, b in marked]
    return out
