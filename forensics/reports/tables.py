"""The tables of a case as reports read them: None where one is absent, single columns where it is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import Case
from forensics.errors import SchemaError, StoreError
from forensics.reports.base import escape
from forensics.schemas import ALL
from forensics.text import redact

MOST_ROWS = 5000  # rows of a table that go into a page; all of them stay beside it


class Tables:
    """Tables of a case; what does not read is taken as absent and named in `broken`."""

    def __init__(self, case: Case, known: Mapping[str, pa.Table] | None = None) -> None:
        self.case = case
        self.broken: dict[str, str] = {}
        self._read: dict[str, pa.Table | None] = dict(known or {})

    def get(self, name: str) -> pa.Table | None:
        """A table of the case, or None."""
        if name not in self._read:
            try:
                self._read[name] = self.case.read(name) if self.case.has(name) else None
            except (StoreError, SchemaError) as error:
                self.broken[name], self._read[name] = error.message, None
        return self._read[name]

    def columns(self, name: str, names: Sequence[str]) -> pa.Table | None:
        """Some columns of a table, read alone; None where the table or one of them is absent."""
        if name in self._read or name in self.broken or not self.case.has(name):
            table = self.get(name)
            return table.select(list(names)) if table is not None and set(names) <= set(table.column_names) else None
        path = self.case.path / "tables" / name
        whole = path.with_name(f"{path.name}.parquet")
        files = [whole] if whole.exists() or not path.is_dir() else sorted(path.glob("part-*.parquet"))
        try:
            parts: list[Any] = [pq.read_table(f, columns=list(names), partitioning=None).replace_schema_metadata(None) for f in files]
            kinds = {c.name: c.type for c in ALL[name].columns}
            same = [pa.table({n: p[n].cast(kinds[n]) for n in names}) for p in parts]
        except (pa.ArrowInvalid, KeyError, OSError):
            return self._whole(name, names)
        return pa.concat_tables(same).unify_dictionaries() if same else None

    def _whole(self, name: str, names: Sequence[str]) -> pa.Table | None:
        table = self.get(name)
        return table.select(list(names)) if table is not None else None

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Its rows; empty where it is absent."""
        table = self.get(name)
        return table.to_pylist() if table is not None else []

    def masked(self, text: str | None) -> str | None:
        """Text that quotes documents, with personal data masked unless the case was made with `redact: false`."""
        made = self.case.info.get("config") or self.case.info.get("settings") or {}
        return text if text is None or made.get("redact") is False else redact(text)[0]

    @property
    def unit(self) -> str:
        """What lengths are counted in."""
        return unit_of(self.rows("corpora"))

    def roles(self, verdict: dict[str, Any]) -> dict[str, tuple[int, int]]:
        """Half-open steps of each role: of the case, or the window of the verdict."""
        found = {}
        for role, text in (self.case.info.get("ranges") or {}).items():
            start, _, stop = str(text).partition(":")
            if start.isdigit() and stop.isdigit():
                found[role] = (int(start), int(stop))
        window = verdict.get("window")
        return found or ({"window": (int(window[0]), int(window[1]))} if window else {})


def unit_of(corpora: Sequence[dict[str, Any]]) -> str:
    """What lengths are counted in, from rows of `corpora`: tokens, or bytes where documents are texts."""
    texts = [c.get("unit") == "byte" for c in corpora]
    return "bytes" if texts and all(texts) else "tokens or bytes" if any(texts) else "tokens"


def absent(tables: Tables, name: str) -> str:
    """What stands where a table is missing."""
    why = tables.broken.get(name)
    said = (
        f"The table `{name}` does not read: {why}" if why else f"This case holds no table `{name}`: this part was not made, or the case is of another version."
    )
    return f'<p class="none">{escape(said)}</p>'


def columns_of(table: pa.Table, wanted: Sequence[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Columns for a page's table: (name, heading, options)."""
    out = []
    for name, label, options in wanted:
        if name in table.column_names:
            values = table[name]
            out.append(
                {"name": name, "label": label, "values": (values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values).to_pylist(), **options}
            )
    return out


def more_rows(table: pa.Table, name: str) -> str:
    """How many rows stay outside the page."""
    left = table.num_rows - MOST_ROWS
    return f'<p class="soft small">{left:,} more rows in <code>tables/{escape(name)}.parquet</code>.</p>' if left > 0 else ""
