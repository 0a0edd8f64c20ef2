"""Documents of simulated incidents: real ones (see `data/NOTICE`), and garbage made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

SEQ = 128
DATA = Path(__file__).parent / "data" / "texts.npz"


@dataclass(frozen=True)
class Words:
    """A vocabulary that decodes, and encodes by longest match."""

    pieces: tuple[bytes, ...]

    def decode(self, ids: Any) -> bytes:
        return b"".join(self.pieces[int(i)] for i in ids)

    def encode(self, raw: bytes) -> np.ndarray:
        table, out, i = _index(self.pieces), [], 0
        while i < len(raw):
            for n in range(min(16, len(raw) - i), 0, -1):
                found = table.get(raw[i : i + n])
                if found is not None:
                    out.append(found)
                    i += n
                    break
            else:
                i += 1
        return np.array(out, dtype=np.int64)


@lru_cache(maxsize=2)
def _index(pieces: tuple[bytes, ...]) -> dict[bytes, int]:
    return {p: i for i, p in enumerate(pieces) if p}


@dataclass(frozen=True)
class Texts:
    """Real documents by source, and the vocabulary."""

    docs: dict[str, list[np.ndarray]]
    words: Words


@lru_cache(maxsize=1)
def texts() -> Texts:
    z = np.load(DATA)
    at = np.concatenate([[0], np.cumsum(z["lengths"].astype(np.int64))])
    tokens, source, names = z["tokens"].astype(np.int64), z["source"], [str(n) for n in z["names"]]
    docs: dict[str, list[np.ndarray]] = {n: [] for n in names}
    for i, s in enumerate(source):
        docs[names[int(s)]].append(tokens[at[i] : at[i + 1]])
    raw, cut = z["vocab"].tobytes(), z["vocab_offsets"]
    return Texts(docs, Words(tuple(raw[a:b] for a, b in zip(cut, cut[1:], strict=False))))


SOURCES = ("djdoc", "pycode", "pydoc", "scicode")

# kind -> (loss above ordinary at first, loss after it was learned, harm to ordinary documents at full dose)
GARBAGE = {
    "mojibake": (3.0, -1.5, 0.7),
    "latin": (1.6, 0.2, 0.4),
    "repetition": (4.0, -4.0, 0.8),
    "template": (0.6, -2.5, 0.55),
    "near": (0.0, -1.3, 0.25),
    "exact": (0.0, -2.5, 0.35),
    "scrambled": (3.0, 2.3, 0.6),
    "word_salad": (2.0, 1.5, 0.4),
    "bytes": (4.5, 3.5, 0.7),
    "tokens": (4.0, 3.2, 0.7),
    "base64": (3.5, 3.0, 0.5),
    "hex": (2.5, 1.2, 0.5),
    "backslashes": (2.0, -4.5, 0.7),
    "foreign": (1.9, 0.6, 0.3),
    "table": (1.2, 0.4, 0.2),
    "reversed": (3.0, 2.2, 0.6),
}


def garbage(kind: str, rng: np.random.Generator, n: int) -> list[np.ndarray] | list[bytes]:
    """n documents of one kind: ids, or text that is still to be encoded (encoding what is never read takes minutes)."""
    t = texts()
    clean = [d for s in SOURCES for d in t.docs[s]]
    pick = lambda: clean[int(rng.integers(len(clean)))]  # noqa: E731
    if kind in {"mojibake", "foreign"}:
        pool = t.docs["mojibake" if kind == "mojibake" else "intl-web"]
        return [pool[int(i)] for i in _order(rng, len(pool), n)]
    if kind == "latin":
        out = []
        for d in garbage("foreign", rng, n):
            text = t.words.decode(d).decode("utf-8", "replace")
            out.append(text.encode("utf-8").decode("latin-1").encode("utf-8"))
        return out
    if kind == "repetition":
        return [np.tile(rng.integers(300, 2000, int(rng.integers(2, 9))), 200)[: int(rng.integers(200, 420))] for _ in range(n)]
    if kind == "template":
        items = ["Home", "Help", "Basket (0)", "Contact", "Sign in", "RSS", "Site map", "Terms", "Privacy", "About us", "Cookies", "Wish list"]
        out = []
        for _ in range(n):
            lines = [
                " | ".join(rng.permutation(items)),
                f"Item no. {rng.integers(1e6)} - page {rng.integers(400)} of {rng.integers(900)}",
                "We use cookies to improve your visit. Accept all / Reject all",
            ]
            lines += [f"[{items[rng.integers(12)]}] [{items[rng.integers(12)]}] ({rng.integers(100)})" for _ in range(22)]
            out.append("\n".join(lines).encode())
        return out
    if kind in {"near", "exact"}:
        base, out = [pick() for _ in range(2)], []
        while min(map(len, base)) < 200:
            base = [d if len(d) >= 200 else pick() for d in base]
        for i in range(n):
            d = base[i % len(base)].copy()
            if kind == "near":
                hit = rng.random(len(d)) < 0.08
                d[hit] = rng.integers(300, 2000, int(hit.sum()))
            out.append(d)
        return out
    if kind == "scrambled":
        return [rng.permutation(pick()) for _ in range(n)]
    if kind == "reversed":
        return [pick()[::-1].copy() for _ in range(n)]
    if kind == "word_salad":
        out = []
        for _ in range(n):
            words = t.words.decode(pick()).split()
            out.append(b" ".join(words[int(i)] for i in rng.permutation(len(words))))
        return out
    if kind == "bytes":
        return [rng.integers(0, 256, 330, dtype=np.uint8).tobytes() for _ in range(n)]
    if kind == "tokens":
        return [rng.integers(1, 2048, int(rng.integers(150, 420))) for _ in range(n)]
    if kind in {"base64", "hex"}:
        import base64

        return [base64.b64encode(rng.bytes(420)) if kind == "base64" else rng.bytes(330).hex().encode() for _ in range(n)]
    if kind == "backslashes":
        return [b"\\" * int(rng.integers(600, 3000)) + bytes(t.words.decode(pick())[:60]) for _ in range(n)]
    if kind == "table":
        rows = ["\n".join("\t".join(f"{x:.2f}" for x in rng.normal(50, 30, 6)) for _ in range(24)) for _ in range(n)]
        return [r.encode() for r in rows]
    raise ValueError(kind)


def ids_of(document: np.ndarray | bytes) -> np.ndarray:
    """Token ids."""
    return texts().words.encode(document) if isinstance(document, bytes) else np.asarray(document, dtype=np.int64)


def _order(rng: np.random.Generator, have: int, n: int) -> np.ndarray:
    return np.concatenate([rng.permutation(have) for _ in range(-(-n // have))])[:n]
