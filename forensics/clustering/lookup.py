"""Is this page in there? An index of a corpus's signatures that is saved and asked later.

It is kept as arrays, not as a pickle. A small corpus is compared as a whole; for a large one `datasketch.MinHashLSH` is built over our own
signatures at the first question, about 0.1 ms a document, and asked for candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from forensics.clustering.minhash import PERMUTATIONS, SCHEME, estimate, minhash, signature_table, units, values_of
from forensics.errors import MissingDependency, StoreError
from forensics.files import writing
from forensics.schemas import SIGNATURES, Signatures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

SMALL = 1 << 16  # documents up to which comparing with all is quicker than building an index


@dataclass(frozen=True)
class Hit:
    """A document of the corpus that resembles the one asked for."""

    doc_key: int
    jaccard: float


def save(signatures: Signatures, path: Path) -> None:
    """Write an index that `open_index` reads."""
    with writing(path) as part:
        pq.write_table(
            signature_table(signatures.column("doc_key").to_numpy(), values_of(signatures), signatures.column("shingles").to_numpy()), part, compression="none"
        )


class Index:
    """Signatures of a corpus, to be asked.

    Args:
        doc_key: int64 [n].
        values: uint32 [n, 128].
    """

    def __init__(self, doc_key: NDArray[np.int64], values: NDArray[np.uint32]) -> None:
        self.doc_key, self.values = doc_key, values
        self._index: tuple[float, Any] | None = None

    def ask(self, batch: DocumentBatch, least: float = 0.5) -> list[list[Hit]]:
        """Documents that resemble each of the batch's, by estimated similarity, the most alike first.

        Args:
            batch: of the same kind as the corpus: ids of the same tokenizer, or text.
            least: similarity from which a document counts.
        """
        asked, shingles = minhash(*units(batch))
        rows = [self._near(value, least) if n else np.empty(0, np.int64) for value, n in zip(asked, shingles)]
        return [self._hits(value, found, least) for value, found in zip(asked, rows)]

    def _near(self, value: NDArray[np.uint32], least: float) -> NDArray[np.int64]:
        if len(self.values) <= SMALL:
            return np.arange(len(self.values))
        return np.array(sorted(self.lsh(least).query(_wrapped(value))), np.int64)

    def _hits(self, value: NDArray[np.uint32], rows: NDArray[np.int64], least: float) -> list[Hit]:
        both = np.concatenate([value[None], self.values[rows]])
        similar = estimate(both, np.zeros(len(rows), np.int64), np.arange(1, len(rows) + 1))
        order = np.lexsort((self.doc_key[rows], -similar))
        return [Hit(int(self.doc_key[rows[i]]), float(similar[i])) for i in order if similar[i] >= least]

    def lsh(self, least: float) -> Any:
        """The corpus in a `datasketch.MinHashLSH`, keyed by row, for this similarity or less."""
        if self._index is None or self._index[0] > least:
            from forensics.clustering.bands import choose_bands

            datasketch = _datasketch()
            bands = choose_bands(least, 0.99)
            index = datasketch.MinHashLSH(num_perm=PERMUTATIONS, params=(bands.bands, bands.rows))
            for row, value in enumerate(self.values):
                index.insert(row, _wrapped(value))
            self._index = (least, index)
        return self._index[1]


def open_index(path: Path) -> Index:
    """An index that `save` wrote, or the signatures of a case: a file, or the folder of its parts.

    Raises:
        StoreError: no signatures, or signatures of another scheme.
    """
    files = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise StoreError(f"{path} holds no signatures", hint="give the folder that `forensics audit` or `forensics replay` wrote, or run that command again")
    tables = []
    for file in files:
        try:
            table = pq.read_table(file, partitioning=None)
        except Exception as error:  # Arrow raises several kinds; each means that it does not read
            raise StoreError(f"{file} does not read: {' '.join(str(error).split())}") from error
        scheme = (table.schema.metadata or {}).get(b"forensics.scheme", SCHEME.encode()).decode()
        if scheme != SCHEME:
            raise StoreError(f"{file} holds signatures of scheme `{scheme}`, this version makes `{SCHEME}`", hint="audit the corpus again")
        tables.append(SIGNATURES.of(table))
    whole = Signatures(SIGNATURES.concat(tables))
    return Index(whole.column("doc_key").to_numpy(), values_of(whole))


def _wrapped(value: NDArray[np.uint32]) -> Any:
    """A signature as datasketch's object; the scheme named only keeps it from being mixed with others."""
    return _datasketch().MinHash(num_perm=PERMUTATIONS, hashvalues=value, scheme="affine32")


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise MissingDependency("datasketch", "test", "looking documents up in a large corpus") from error
    return datasketch
