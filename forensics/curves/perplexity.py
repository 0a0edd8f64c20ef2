"""Whether the losses of two runs may be compared at all: only under one tokenizer, one held-out set and one definition of the loss (rule 23).

A perplexity is per token of its own tokenizer. Where tokenizers differ, bits per byte on the same text is the common unit; where the definition of the loss
differs (masked, weighted, with auxiliary terms), or the text does, no unit helps.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forensics.curves.series import Curves, Series
from forensics.curves.settings import Ruler

WHAT = {"tokenizer": "tokenizers", "loss": "definitions of the loss", "validation": "held-out sets"}
FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")


@dataclass(frozen=True)
class Level:
    """One held-out set of two runs at their last common step, in `unit`."""

    name: str
    step: int
    a: float
    b: float
    unit: str


@dataclass(frozen=True)
class Levels:
    """Whether the levels of two runs compare.

    Attributes:
        a, b: names of the runs.
        answer: comparable, ppl_not_comparable or not_evaluated.
        differ: what differs, in words; unknown: what is not known of one run or both.
        refused: the training losses do not compare either: other tokens or another loss.
        levels: held-out losses where they compare, bits per byte where those are offered instead.
    """

    a: str
    b: str
    answer: str
    differ: tuple[str, ...]
    unknown: tuple[str, ...]
    refused: bool
    levels: tuple[Level, ...]

    @property
    def sentence(self) -> str:
        """In a line."""
        offer = "; ".join(f"{x.name} at step {x.step}: {x.a:.4f} against {x.b:.4f} {x.unit}" for x in self.levels)
        if self.answer == "comparable":
            return f"held-out losses compare: {offer or 'but no set was evaluated at a common step'}"
        if self.answer == "not_evaluated":
            how = f"--set ruler.{self.unknown[0]}=... --set against.{self.unknown[0]}=..."
            return f"levels of the loss not compared: {', '.join(self.unknown)} not known of both runs ({how})"
        would = "bits per byte would: log them, or give ruler.bytes_per_token and against.bytes_per_token"
        instead = offer or (would if self.only_tokens else "no unit makes them compare")
        return f"perplexities do not compare (ppl_not_comparable): {'; '.join(self.differ)}; {instead}"

    @property
    def only_tokens(self) -> bool:
        """Whether nothing but the tokenizer is known to differ."""
        return len(self.differ) == 1 and self.differ[0].startswith(WHAT["tokenizer"])


def levels(a: Curves, b: Curves, ruler: Ruler, other: Ruler) -> Levels:
    """Compare how two runs were measured, and their held-out losses as far as that allows."""
    differ, unknown, refused = [], [], False
    for key, words in WHAT.items():
        one, two = (identity(getattr(r, key)) for r in (ruler, other))
        if one is None or two is None:
            unknown.append(key)
        elif one != two:
            differ.append(f"{words} differ ({one} and {two})")
            refused = refused or key != "validation"
    answer = "ppl_not_comparable" if differ else "not_evaluated" if unknown else "comparable"
    draft = Levels(a.run, b.run, answer, tuple(differ), tuple(unknown), refused, ())
    if answer == "comparable":
        found = _common(a, b, "eval_loss", "nats/token")
    elif draft.only_tokens:
        found = _common(a, b, "eval_bpb", "bit/byte") or _bits(_common(a, b, "eval_loss", "bit/byte"), ruler, other)
    else:
        found = ()
    return Levels(a.run, b.run, answer, tuple(differ), tuple(unknown), refused, found)


def identity(text: str | None) -> str | None:
    """What a description of a tokenizer, set or loss stands for: the content of the file or folder it names, else the words themselves."""
    if text is None:
        return None
    path = Path(text)
    try:
        files = [path / n for n in FILES if (path / n).is_file()] if path.is_dir() else [path] if path.is_file() else []
    except OSError:  # a text too long for a path
        files = []
    if not files:
        return text
    found = hashlib.blake2b(digest_size=8)
    for file in files:
        with file.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "blake2b").digest())
    return found.hexdigest()


def _common(a: Curves, b: Curves, family: str, unit: str) -> tuple[Level, ...]:
    """The last common step of every curve of a family that both runs have."""
    found = []
    for name in sorted(n for n in a.global_ if n == family or n.startswith(family + "/")):
        one, two = a.get(name), b.get(name)
        if one is None or two is None:
            continue
        x, y = one.finite(), two.finite()
        step = np.intersect1d(x.step, y.step)
        if len(step):
            found.append(Level(name, int(step[-1]), _at(x, int(step[-1])), _at(y, int(step[-1])), unit))
    return tuple(found)


def _at(s: Series, step: int) -> float:
    return float(s.value[s.at(step)])


def _bits(found: tuple[Level, ...], ruler: Ruler, other: Ruler) -> tuple[Level, ...]:
    """Nats per token as bits per byte, by the bytes that a token of each tokenizer holds on the set."""
    if not ruler.bytes_per_token or not other.bytes_per_token:
        return ()
    one, two = np.log(2) * ruler.bytes_per_token, np.log(2) * other.bytes_per_token
    return tuple(Level(x.name, x.step, float(x.a / one), float(x.b / two), x.unit) for x in found)
