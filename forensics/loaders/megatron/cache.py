"""The run's own index files: found by their descriptions, read only where asked.

Names are `<md5>-<class>[-<split>]-<what>.npy` beside a `...-description.txt` (no split in the name up to 0.6). The hash
covers the tokenizer and the path as the cluster saw it, so it is never computed here: descriptions are JSON and are
matched on split, seed, sequence length, samples and the tail of the path. What the description does not hold (the data
files themselves, extra token, surplus, version) is checked against the data instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.loaders.megatron.indices import split_bounds

LARGEST_DESCRIPTION = 1 << 26


@dataclass(frozen=True)
class Wanted:
    """What an index must have been built for.

    Attributes:
        paths: the prefix as the run saw it and as it is now.
        samples: N_i; None where one pass was built.
        split: shares of the common list; None where the corpus is used whole.
    """

    paths: tuple[str, ...]
    index_split: str
    seed: int
    length: int
    split: str | None
    samples: int | None


@dataclass(frozen=True)
class Description:
    """One description file."""

    base: Path
    content: dict[str, Any]

    @property
    def path(self) -> str:
        """Prefix of the corpus as the run saw it."""
        return str(self.content.get("dataset_path") or self.content.get("path_prefix") or "")

    def file(self, what: str) -> Path:
        """One of its arrays."""
        return self.base.with_name(f"{self.base.name}{what}.npy")

    @property
    def held(self) -> bool:
        """Whether any of its arrays were kept beside it; without them it still says under which name the trainer looks."""
        return any(self.file(f"{what}_index").exists() for what in ("document", "sample", "shuffle", "dataset", "dataset_sample"))


class CachedIndex:
    """Document, sample and shuffle index of one corpus, memory-mapped.

    Args:
        description: where they lie.

    Raises:
        StoreError: a file that is missing or no such array.
    """

    def __init__(self, description: Description) -> None:
        self.description = description
        self.name = description.base.name.rstrip("-")
        self.documents: NDArray[np.int32] = load(description.file("document_index"), 1)
        self.samples: NDArray[Any] = load(description.file("sample_index"), 2)
        self.shuffle: NDArray[Any] = load(description.file("shuffle_index"), 1)

    def contradiction(self, entries: int, samples: int) -> str:
        """What does not fit the sizes that the data files and arguments give; an empty string where all does."""
        if len(self.documents) != entries:
            return f"{len(self.documents)} entries of the document index, {entries} expected"
        if len(self.samples) != samples + 1 or len(self.shuffle) != samples:
            return f"{len(self.shuffle)} samples, {samples} expected"
        return ""

    def newest(self) -> float:
        """Modification time of the newest of its files, in seconds."""
        return max(self.description.file(f"{what}_index").stat().st_mtime for what in ("document", "sample", "shuffle"))


class CachedBlend:
    """Order of a blend as the run kept it: `pick` and `seek` as `BlendOrder` has them."""

    def __init__(self, description: Description) -> None:
        self.name = description.base.name.rstrip("-")
        self.corpus: NDArray[Any] = load(description.file("dataset_index"), 1)
        self.sample: NDArray[Any] = load(description.file("dataset_sample_index"), 1)
        self.length = len(self.corpus)
        if len(self.sample) != self.length:
            raise StoreError(f"{self.name}: {self.length} entries of the dataset index, {len(self.sample)} sample numbers")

    def pick(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Corpus and its sample number at each position."""
        return np.asarray(self.corpus[positions], np.int16), np.asarray(self.sample[positions], np.int64)

    def seek(self, corpus: NDArray[np.int64], sample: NDArray[np.int64], block: int = 1 << 22) -> NDArray[np.int64]:
        """Position of each (corpus, sample number); -1 where the blend does not reach it."""
        found = np.full(len(corpus), -1, np.int64)
        for number in np.unique(corpus):
            mine = np.flatnonzero(corpus == number)
            order = mine[np.argsort(sample[mine], kind="stable")]
            values = sample[order]
            for first in range(0, self.length, block):
                here = np.flatnonzero(np.asarray(self.corpus[first : first + block]) == number)
                drawn = np.asarray(self.sample[first : first + block])[here]
                if not len(drawn):
                    continue
                at = np.minimum(np.searchsorted(drawn, values), len(drawn) - 1)
                hit = drawn[at] == values
                found[order[hit]] = first + here[at[hit]]
        return found


def load(path: Path, dimensions: int) -> NDArray[Any]:
    """An array, memory-mapped, as a plain view.

    Raises:
        StoreError: when it is missing, truncated, or of another shape.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing beside its description") from error
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(f"{path} is no readable index array ({error})", hint="it may be truncated; leave `cache` out to rebuild") from error
    if found.ndim != dimensions or found.dtype.kind not in "iu" or (dimensions == 2 and found.shape[1] != 2):
        raise StoreError(f"{path} holds {found.dtype} {list(found.shape)}, not an index of {dimensions} dimensions")
    return np.asarray(found)


class CacheFolders:
    """All descriptions of some folders.

    Args:
        folders: where to look; those that do not exist are passed over.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folders))

    @cached_property
    def descriptions(self) -> list[Description]:
        """Every readable description, by file name."""
        out = []
        for folder in self.folders:
            for file in sorted(folder.glob("*-description.txt")) if folder.is_dir() else ():
                try:
                    if file.stat().st_size <= LARGEST_DESCRIPTION and isinstance(content := json.loads(file.read_text()), dict):
                        out.append(Description(file.with_name(file.name.removesuffix("description.txt")), content))
                except (OSError, ValueError, RecursionError):
                    continue  # a foreign file of that name: the arrays that matter have a readable one
        return out

    def corpora(self, wanted: Wanted) -> list[Description]:
        """Indices built for this, the best match of the path first."""
        return [d for d in self.named(wanted) if d.held]

    def named(self, wanted: Wanted) -> list[Description]:
        """Descriptions of indices built for this, whether or not their arrays were kept."""
        found = [(tail(d.path, wanted.paths), n, d) for n, d in enumerate(self.descriptions) if matches(d.content, wanted)]
        best = max((score for score, _, _ in found), default=0)
        return [d for score, _, d in found if score == best and score > 0]

    def other_sizes(self, wanted: Wanted) -> list[int | None]:
        """Samples of the indices that match in everything but their number."""
        sizes = [d.content.get("num_samples") for d in self.descriptions if d.held and tail(d.path, wanted.paths) and matches(d.content, wanted, any_size=True)]
        return sorted({n for n in sizes if n != wanted.samples}, key=lambda n: -1 if n is None else n)

    def blends(self, wanted: Sequence[Wanted], weights: Sequence[float], size: int | None) -> list[Description]:
        """Blends of exactly these corpora, weights and size."""
        out = []
        for d in self.descriptions:
            parts = d.content.get("datasets")
            if not isinstance(parts, list) or len(parts) != len(wanted) or d.content.get("size") != size or not d.held:
                continue
            given = d.content.get("weights")
            if not isinstance(given, list) or len(given) != len(weights) or not np.allclose(given, weights, rtol=1e-12, atol=0):
                continue
            if all(
                isinstance(p, dict) and matches(p, w) and tail(str(p.get("dataset_path") or p.get("path_prefix") or ""), w.paths) for p, w in zip(parts, wanted)
            ):
                out.append(d)
        return out


def matches(content: dict[str, Any], wanted: Wanted, *, any_size: bool = False) -> bool:
    """Whether an index was built with these arguments, the path aside."""
    if "datasets" in content or (content.get("index_split"), content.get("random_seed"), content.get("sequence_length")) != (
        wanted.index_split,
        wanted.seed,
        wanted.length,
    ):
        return False
    if not any_size and content.get("num_samples") != wanted.samples:
        return False
    given = content.get("split")
    if given is None or wanted.split is None:
        return given is None and wanted.split is None
    try:
        return split_bounds(str(given)) == split_bounds(wanted.split)
    except Exception:  # a foreign description may hold anything; it then does not match
        return False


def tail(path: str, paths: Iterable[str]) -> int:
    """How many last components of a path agree with the best of several; a whole path beats any tail."""
    mine = PurePosixPath(path.replace("\\", "/")).parts[::-1]
    best = 0
    for other in paths:
        if other == path:
            return 1 << 20
        common = 0
        for a, b in zip(mine, PurePosixPath(other.replace("\\", "/")).parts[::-1]):
            if a != b:
                break
            common += 1
        best = max(best, common)
    return best
