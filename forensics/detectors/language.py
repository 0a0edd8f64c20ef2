"""The language of suspects and of a sample, and whether it is what the rest of the document is written in.

Identification is `py3langid`'s where it is installed (a model in the package, nothing is fetched), on the first characters of letters; otherwise the share
of each script, which
needs no model. Reported, never garbage: an unexpected language is judged against its source by whoever knows the source.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import DETECTORS, Detector, Evidence, Found, Measure, Text
from forensics.stores.batch import DocumentBatch

MEASURES = (Measure("mixed", "1", "share of letters that are not of the document's main script, where at least a tenth of its words are"),)
LOOKED_AT = 4000  # characters; bytes are counted twice


@functools.cache
def _scripts() -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Script of every character of the basic plane, by its Unicode name (0: no letter), and the scripts' names."""
    names = [""]
    out = np.zeros(1 << 16, np.uint8)
    known: dict[str, int] = {}
    for code in range(1 << 16):
        character = chr(code)
        if character.isalpha():
            name = unicodedata.name(character, "").split(" ")[0]
            name = "HAN" if name in ("CJK", "HIRAGANA", "KATAKANA") else name
            if name not in known:
                known[name] = min(len(names), 255)
                names.append(name)
            out[code] = known[name]
    return out, tuple(names)


def identify(string: str) -> str | None:
    """ISO code of the language, or None without the library or with too little text."""
    letters = sum(c.isalpha() for c in string[:LOOKED_AT])
    if letters < 40:
        return None
    try:
        import py3langid
    except ImportError:
        return None
    return str(py3langid.classify(string[: LOOKED_AT // 4])[0])


def scripts(text: Text) -> Counter[str]:
    """Letters per script in the beginning, middle and end of a text."""
    third, middle = LOOKED_AT // 3 * 2, len(text) // 2
    raw = text.bytes
    part = raw if len(raw) <= 2 * LOOKED_AT else b" ".join((raw[:third], raw[middle : middle + third], raw[-third:]))
    codes = np.frombuffer(part.decode("utf-8", "ignore").encode("utf-16-le"), np.uint16)
    table, names = _scripts()
    count = np.bincount(table[codes], minlength=256)
    return Counter({names[k]: int(count[k]) for k in np.flatnonzero(count).tolist() if k})


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({"mixed": np.zeros(len(docs), np.float32)})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or len(text) < 200:
            continue
        count = scripts(text)
        total = sum(count.values())
        if total < 100 or len(count) < 2:
            continue
        (main, most), *rest = count.most_common()
        share = 1 - most / total
        found.columns["mixed"][i] = share
        if share >= 0.3:
            said = identify(text.string) or "not identified"
            parts = f"{main.lower()} {most / total:.0%}, {rest[0][0].lower()} {rest[0][1] / total:.0%}"
            found.evidence[i] = Evidence([], f"{parts}; language {said}")
    return found


DETECTORS.add("language", Detector("language", MEASURES, 2, "text", _run, None, "decoded"), __name__)
