"""The case folder: what one question about a run has brought to light, and from what.

    CASE/case.json            command, configuration, versions, assumed defaults, seconds per stage
    CASE/verdict.json         the answer
    CASE/tables/NAME.parquet  every table; large ones as a folder of parts, one per block of steps or shard

A stored table carries the fingerprint of the arguments it was made from. Unchanged inputs are not computed again, an
interrupted command goes on where it stopped, and nothing half-written is ever seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from forensics import __version__
from forensics.errors import ForensicsError, SchemaError, StoreError, UsageError, nearest
from forensics.files import digest, write_text, writing
from forensics.schemas import ALL, TableType
from forensics.stage import MARK, Stage, content

P = ParamSpec("P")
T = TypeVar("T")
Note = Callable[[str], None]
SHAPES: Mapping[str, Mapping[str, type]] = {
    "case.json": {"run": str, "set": list, "seconds": dict, "ranges": dict, "checkpoints": list, "config": dict, "settings": dict},
    "verdict.json": {
        **dict.fromkeys(("severity", "cause", "subcause", "confidence", "sentence", "action"), str),
        **dict.fromkeys(("window", "evidence_for", "evidence_against", "not_evaluated", "secondary", "notes"), list),
        **dict.fromkeys(("rollback", "skip", "expected", "proof"), dict),
    },
    "verdicts.json": {},
}
"""Files of a case that hold one object, and the types of keys that are read from them."""


@dataclass(frozen=True)
class Parts:
    """Stored parts of one table, read one at a time and as often as wanted.

    Attributes:
        table: which one.
        paths: in the order of the rows.
        fingerprint: changes when any part does.
    """

    table: TableType
    paths: tuple[Path, ...]
    fingerprint: str

    def __iter__(self) -> Iterator[pa.Table]:
        """The parts, in order."""
        return (read_part(self.table, path) for path in self.paths)


class Case:
    """A case folder, created on first write.

    Args:
        path: the folder.
        note: called with one line when a stage starts or was found done.
    """

    def __init__(self, path: Path, note: Note | None = None) -> None:
        self.path = path
        self._note = note or (lambda line: None)
        self.info: dict[str, Any] = self.json("case.json") or {}

    def run(self, stage: Stage[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The stage's table for these arguments: read back where it is stored for exactly them, else computed and stored."""
        mark = stage.mark(*args, **kwargs)
        path = self._file(stage.table.name)
        if _mark_of(path) == mark:
            self._note(f"{stage.table.name}: unchanged, read back")
            return cast(T, read_part(stage.table, path))
        begin = time.process_time()
        table = _marked(stage.table.of(cast(pa.Table, stage(*args, **kwargs))), mark)
        self._write(table, path)
        self.info.setdefault("seconds", {})[stage.table.name] = round(time.process_time() - begin, 3)
        self._note(f"{stage.table.name}: {table.num_rows:,} rows")
        return cast(T, table)

    def run_parts(self, stage: Stage[P, T], parts: Iterable[tuple[str, tuple[Any, ...]]], on_part: Callable[[int], None] | None = None) -> T:
        """A stage over many pieces of work, each stored as its own part; a second run computes only what is missing.

        Args:
            stage: called once per part.
            parts: name of the part and the arguments of the stage for it; the name sorts as the rows shall.
            on_part: called with the number of finished parts.

        Returns:
            All parts' rows as one table.
        """
        made = self.keep_parts(stage, parts, on_part)
        return cast(T, _marked(stage.table.concat([t.replace_schema_metadata(stage.table.schema.metadata) for t in made]), made.fingerprint))

    def keep_parts(self, stage: Stage[P, T], parts: Iterable[tuple[str, tuple[Any, ...]]], on_part: Callable[[int], None] | None = None) -> Parts:
        """The same, with the parts left on disk: for what is larger than memory, or gone through once.

        Args:
            stage, parts, on_part: as for `run_parts`.
        """
        folder = self.path / "tables" / stage.table.name
        marks = []
        for done, (name, args) in enumerate(parts, 1):
            mark = stage.mark(*args)
            path = folder / f"part-{name}.parquet"
            if _mark_of(path) != mark:
                self._write(_marked(stage.table.of(cast(pa.Table, stage(*args))), mark), path)  # type: ignore[call-arg]
            marks.append((path.name, mark))
            if on_part:
                on_part(done)
        known = {name for name, _ in marks}
        for old in folder.glob("part-*.parquet") if folder.is_dir() else ():
            if old.name not in known:
                old.unlink()
        self._file(stage.table.name).unlink(missing_ok=True)
        return Parts(stage.table, tuple(folder / name for name, _ in marks), digest(marks))

    def put(self, kind: TableType, table: pa.Table, name: str | None = None) -> pa.Table:
        """Store a table that no stage made; returns it checked. Its fingerprint is of its content."""
        table = kind.of(table)
        table = _marked(table, content(table))
        self._write(table, self._file(name or kind.name))
        return table

    def put_pieces(self, kind: TableType, pieces: Iterable[pa.Table]) -> int:
        """Store a table that is made a piece at a time and never whole in memory; returns its rows."""
        rows = 0
        schema = _marked(kind.empty(), digest(kind.name, time.time_ns())).schema
        with writing(self._file(kind.name)) as part, pq.ParquetWriter(part, schema, compression="zstd", **_encodings(schema)) as out:
            for piece in pieces:
                rows += piece.num_rows
                out.write_table(kind.of(piece).replace_schema_metadata(schema.metadata))
        return rows

    def put_plain(self, name: str, table: pa.Table) -> None:
        """Store a table whose columns no schema fixes: one detector's measures, a matrix."""
        with writing(self._file(name)) as part:
            pq.write_table(table, part, compression="zstd")

    def has(self, name: str) -> bool:
        """Whether a table of this name is stored."""
        return self._file(name).exists() or (self.path / "tables" / name).is_dir()

    def get(self, kind: TableType) -> pa.Table:
        """A stored table; columns added since it was written are null.

        Raises:
            StoreError: when it is not there or does not read.
        """
        path, folder = self._file(kind.name), self.path / "tables" / kind.name
        if path.exists():
            return read_part(kind, path)
        if folder.is_dir():
            return kind.concat([read_part(kind, p).replace_schema_metadata(kind.schema.metadata) for p in sorted(folder.glob("part-*.parquet"))])
        raise StoreError(f"{self.path} holds no table `{kind.name}`{nearest(kind.name, self.tables())}")

    def read(self, name: str) -> pa.Table:
        """A stored table by name, known to `schemas` or not."""
        if name in ALL:
            return self.get(ALL[name])
        path = self._file(name)
        if not path.exists():
            raise StoreError(f"{self.path} holds no table `{name}`{nearest(name, self.tables())}", hint=f"it holds: {', '.join(self.tables()) or 'none'}")
        try:
            return pq.read_table(path, partitioning=None)
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"{path} does not read ({error})", hint="delete it and run the command again") from error

    def tables(self) -> list[str]:
        """Names of the stored tables."""
        root = self.path / "tables"
        if not root.is_dir():
            return []
        found = {str(p.relative_to(root).with_suffix("")) for p in root.rglob("*.parquet") if not p.name.startswith("part-")}
        found |= {str(p.parent.relative_to(root)) for p in root.rglob("part-*.parquet")}
        return sorted(found)

    def json(self, name: str) -> Any:
        """A JSON file of the case, or None.

        Raises:
            StoreError: when it does not read, or is of another shape than this tool writes.
        """
        path, hint = self.path / name, "delete it and run the command that wrote the case again, or give another case folder"
        try:
            found = json.loads(path.read_text("utf-8")) if path.exists() else None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{path} cannot be read ({error})", hint=hint) from error
        if found is not None and name in SHAPES and (wrong := _misshapen(found, SHAPES[name])):
            raise StoreError(f"{path} was not written by this tool: {wrong}", hint=hint)
        return found

    def described(self) -> tuple[Path, list[str]]:
        """The description of the run that the case is about, and the settings given on top of it.

        Raises:
            StoreError: when the case is not of a run.
        """
        if not self.info.get("run"):
            raise StoreError(f"{self.path / 'case.json'} does not say which run the case is of", hint="give the folder that `forensics replay` wrote")
        return Path(self.info["run"]), list(self.info.get("set") or ())

    def write_json(self, name: str, value: Any) -> Path:
        """Write a JSON file of the case."""
        write_text(self.path / name, json.dumps(value, indent=1, ensure_ascii=False, default=_plain, allow_nan=False) + "\n")
        return self.path / name

    def close(self, **info: Any) -> None:
        """Write `case.json`: how this case was made."""
        self.info.update({"tool": __version__, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **info})
        self.write_json("case.json", self.info)

    def _file(self, name: str) -> Path:
        return self.path / "tables" / f"{name}.parquet"

    def _write(self, table: pa.Table, path: Path) -> None:
        with writing(path) as part:
            pq.write_table(table, part, compression="zstd", **_encodings(table.schema))


def read_part(kind: TableType, path: Path) -> pa.Table:
    """A stored file of this table, with its mark; columns that this version does not know are left out.

    Raises:
        StoreError: when it does not read.
    """
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise StoreError(f"{path} does not read ({error})", hint="delete it and run the command again") from error
    mark = (table.schema.metadata or {}).get(MARK, b"").decode("ascii", "replace")
    known = [c.name for c in kind.columns]
    try:
        return _marked(kind.of(table.select([n for n in table.column_names if n in known])), mark)
    except SchemaError as error:
        error.add_note(f"read from {path}")
        raise


def open_case(path: Path) -> Case:
    """An existing case.

    Raises:
        ForensicsError: when the folder holds none.
    """
    if not (path / "tables").is_dir() and not (path / "case.json").exists():
        inside = sorted(str(p.parent) for p in path.glob("*/case.json"))
        hint = f"cases in it: {', '.join(inside[:8])}" if inside else "give the folder that `forensics replay`, `curves` or `audit` wrote"
        raise ForensicsError(f"{path} is no case folder", hint=hint)
    return Case(path)


def case_for(command: str, path: Path, note: Note | None = None) -> Case:
    """A case that a command writes: a new folder, or the one that it wrote before.

    Raises:
        UsageError: the folder holds the case of another command.
    """
    case = Case(path, note)
    before = case.info.get("command", command)
    if before != command:
        raise UsageError(f"{path} holds the case of `forensics {before}`", hint="give another folder with `-o`")
    return case


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Dictionaries for names only, differences for whole numbers and times, smallest and largest value of names and steps only: half the seconds and half
    the bytes of the default on 24 M metrics.
    """
    names = [f.name for f in schema if pa.types.is_dictionary(f.type)]
    whole = {f.name: "DELTA_BINARY_PACKED" for f in schema if f.type == pa.int64() or pa.types.is_timestamp(f.type)}
    ranged = [*names, *(f.name for f in schema if f.name in ("launch", "step"))]
    return {"use_dictionary": names or False, "column_encoding": whole or None, "write_statistics": ranged or True}


def _marked(table: pa.Table, mark: str) -> pa.Table:
    return table.replace_schema_metadata({**(table.schema.metadata or {}), MARK: mark.encode()})


def _mark_of(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        metadata: Mapping[bytes, bytes] = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError):
        return None
    found = metadata.get(MARK)
    return found.decode() if found else None


def _misshapen(found: Any, shape: Mapping[str, type]) -> str:
    """What is wrong with the content of a file, empty where nothing is; a key may lack or be null."""
    if not isinstance(found, dict):
        return f"it holds a {type(found).__name__}, not an object"
    wrong = [key for key, kind in shape.items() if found.get(key) is not None and not isinstance(found[key], kind)]
    return f"`{wrong[0]}` is a {type(found[wrong[0]]).__name__}, not a {shape[wrong[0]].__name__}" if wrong else ""


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (Path, set, frozenset)):
        return sorted(value) if not isinstance(value, Path) else str(value)
    raise TypeError(f"{type(value).__qualname__} cannot be written as JSON")
