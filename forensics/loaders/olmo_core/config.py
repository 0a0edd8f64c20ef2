"""Options of an OLMo-core run: data set, loader and trainer blocks as `config.json` names them.

`dataset` is a `Numpy...DatasetConfig` (or, for the composable loader, `sources` are instance source configs), told
apart by `_CLASS_` or `type`; `data_loader` a `NumpyDataLoaderConfig` or `ComposableDataLoaderConfig`; `trainer` a
`TrainerConfig`. Names and defaults: olmo_core/data/{numpy_dataset,data_loader,source_mixture}.py, data/composable,
train/config.py, read in 3.0.0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forensics.errors import ConfigError, NotReplayable, nearest
from forensics.loaders.arguments import Arguments
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.fsl import FslInstances
from forensics.loaders.olmo_core.instances import Instances
from forensics.loaders.olmo_core.mixture import MixedSource, mixture
from forensics.loaders.olmo_core.packed import Group, PackedInstances, Packing, cache_names, cut_long, pack, read_packing
from forensics.loaders.olmo_core.padded import InterleavedInstances, PaddedInstances
from forensics.loaders.olmo_core.repetition import Filter
from forensics.loaders.olmo_core.vsl import Curriculum, VslInstances
from forensics.stores.gather import offsets_of

KINDS = {
    "fsl": "NumpyFSLDataset",
    "padded": "NumpyPaddedFSLDataset",
    "packed": "NumpyPackedFSLDataset",
    "interleaved": "NumpyInterleavedFSLDataset",
    "vsl": "NumpyVSLDataset",
    "mixture": "NumpyFSLDatasetMixture",
}
SHARED = (
    "_CLASS_", "type", "tokenizer", "paths", "expand_glob", "dtype", "source_permutation_seed", "work_dir", "instance_filter_config", "sequence_length",
    "eos_token_id", "pad_token_id", "bos_token_id", "vocab_size", "mix", "mix_base_dir", "ignore_fingerprint_mismatch",
)  # fmt: skip
HARMLESS = ("metadata", "include_instance_metadata", "generate_doc_lengths", "label_mask_paths")
OWN: dict[str, tuple[str, ...]] = {
    "fsl": ("max_target_sequence_length", "source_mixture_config"),
    "mixture": ("max_target_sequence_length", "path_offset_index", "seed", "source_mixture_config"),
    "padded": (),
    "packed": ("long_doc_strategy", "source_group_size", "use_array_if_local"),
    "interleaved": ("docs_per_instance", "chunks_per_doc", "seed", "interleaving_exempt_paths"),
    "vsl": ("max_sequence_length", "min_sequence_length", "vsl_curriculum"),
}
LOADER_HARMLESS = (
    "_CLASS_", "type", "num_threads", "num_workers", "prefetch_factor", "target_device_type", "generate_doc_lengths", "display_source_visualization",
    "tokenizer",
)  # fmt: skip
UINTS = ("uint8", "uint16", "uint32", "uint64")


@dataclass
class Files:
    """The token files of a run, opened once each, numbered in order of appearance."""

    locate: Any
    stores: list[ArrayStore] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _known: dict[tuple[str, str, int | None, int | None], int] = field(default_factory=dict)

    def number(self, path: str, dtype: str, end: int | None, begin: int | None) -> int:
        """Number of a file, opened where it is new."""
        key = (path, dtype, end, begin)
        if key not in self._known:
            self._known[key] = len(self.stores)
            self.stores.append(ArrayStore(self.locate(path), dtype, end=end, begin=begin))
            self.names.append(path)
        return self._known[key]


@dataclass(frozen=True)
class Tokenizer:
    """The special ids that bound documents and fill rows."""

    end: int | None
    pad: int | None
    begin: int | None
    vocabulary: int | None

    def dtype(self, given: object) -> str:
        """Type of the ids: as given, else the smallest that holds the vocabulary.

        Raises:
            ConfigError: neither is known.
        """
        if given is not None:
            if given not in UINTS:
                raise ConfigError(f"`dtype: {given}` is no unsigned integer type{nearest(str(given), UINTS)}")
            return str(given)
        if self.vocabulary is None:
            raise ConfigError("OLMo-core needs `dtype` or the tokenizer's `vocab_size` to tell how wide token ids are")
        return next(name for name in UINTS if self.vocabulary - 1 <= np.iinfo(name).max)


def read_tokenizer(block: Arguments) -> Tokenizer:
    """The tokenizer's ids, from its block or beside it."""
    inner = Arguments("tokenizer", block.mapping("tokenizer"), ("eos_token_id", "pad_token_id", "bos_token_id", "vocab_size"), ("_CLASS_", "identifier"))

    def one(name: str) -> int | None:
        return inner.optional(name) if name in inner else block.optional(name)

    return Tokenizer(one("eos_token_id"), one("pad_token_id"), one("bos_token_id"), one("vocab_size"))


def kind_of(block: Mapping[str, Any]) -> str:
    """Which data set a block configures.

    Raises:
        NotReplayable: one that is not modelled.
    """
    given = str(block.get("_CLASS_") or block.get("type") or "fsl").rpartition(".")[2].removesuffix("Config")
    for kind, name in KINDS.items():
        if given in (kind, name):
            return "mixture" if kind == "fsl" and block.get("source_mixture_config") else kind
    raise NotReplayable(f"the data set `{given}` of OLMo-core is not modelled{nearest(given, KINDS.values())}", hint=f"known: {', '.join(KINDS.values())}")


@dataclass(frozen=True)
class DataSet:
    """A data set, opened.

    Attributes:
        kind: key of `KINDS`.
        instances: what it holds.
        curriculum: of a data set of variable lengths.
        masks: the n-gram filter, None without.
        fingerprint_fields: what the library's fingerprint is made of; empty where it is not computed.
        paths: in the data set's order.
        numbers: corpus of each file as the instances count files.
        note: what a reader must know of it, or nothing.
    """

    kind: str
    instances: Instances
    curriculum: Curriculum | None
    masks: Filter | None
    fingerprint_fields: tuple[tuple[str, object], ...]
    paths: tuple[str, ...]
    numbers: tuple[int, ...]
    note: str = ""


def read_filter(given: Mapping[str, Any] | None) -> Filter | None:
    """The n-gram filter's options."""
    if not given:
        return None
    read = Arguments("instance_filter_config", given, ("repetition_max_period", "repetition_min_period", "repetition_max_count"), ("_CLASS_",))
    return Filter(read.integer("repetition_max_period", 13), read.integer("repetition_min_period", 1), read.integer("repetition_max_count", 32))


def open_dataset(given: Mapping[str, Any], files: Files, caches: Sequence[Path]) -> DataSet:
    """The data set that a `dataset` block configures.

    Args:
        given: the block.
        files: the run's files, added to.
        caches: work directories in which the library's own index files may lie.
    """
    kind = kind_of(given)
    read = Arguments(f"the {KINDS[kind]}", given, (*SHARED, *OWN[kind]), HARMLESS)
    read.refuse("mix", None, "the files of a named mix are not listed in the configuration; give `paths`")
    words = read_tokenizer(read)
    dtype = words.dtype(read.get("dtype"))
    masks = read_filter(read.get("instance_filter_config"))
    if kind == "mixture":
        paths, heads = _mixture_paths(read, files, dtype)
    else:
        paths, heads = _paths(read, files), None
    begin = words.begin if kind == "packed" else None
    numbers = [files.number(p, dtype, words.end, begin) for p in paths]
    stores = [files.stores[n] for n in numbers]
    curriculum, note = None, ""
    instances: Instances
    if kind in ("fsl", "mixture"):
        width = read.integer("sequence_length", least=1)
        instances = FslInstances(stores, width, read.integer("max_target_sequence_length", width, least=1), heads)
    elif kind == "padded":
        instances = PaddedInstances(_scanned(stores, words), read.integer("sequence_length", least=1), _pad(words))
    elif kind == "interleaved":
        instances = _interleaved(read, _scanned(stores, words), paths, words)
    elif kind == "vsl":
        instances = VslInstances(_scanned(stores, words), read.integer("min_sequence_length", least=1), read.integer("max_sequence_length", least=1))
        curriculum = _curriculum(read.mapping("vsl_curriculum"))
    else:
        instances, note = _packed(read, stores, paths, words, caches)
    return DataSet(kind, instances, curriculum, masks, _fields(kind, read, words, dtype, paths), tuple(paths), tuple(numbers), note)


def _scanned(stores: Sequence[ArrayStore], words: Tokenizer) -> Sequence[ArrayStore]:
    if words.end is None:
        raise ConfigError("OLMo-core needs the tokenizer's `eos_token_id` to find documents")
    return stores


def _pad(words: Tokenizer) -> int:
    if words.pad is None:
        raise ConfigError("OLMo-core needs the tokenizer's `pad_token_id` to pad instances")
    return words.pad


def _paths(read: Arguments, files: Files) -> list[str]:
    given = [str(p) for p in read.listed("paths")]
    if not given:
        raise ConfigError(f"{read.owner} needs `paths`")
    if read.flag("expand_glob", False):
        given = [p for pattern in given for p in expand(pattern, files)]
    if (seed := read.optional("source_permutation_seed")) is not None:
        given = permuted(given, seed)
    return given


def expand(pattern: str, files: Files) -> list[str]:
    """Files that a pattern matches, sorted as the library sorts them.

    Raises:
        ConfigError: no file matches.
    """
    root = files.locate(pattern.split("*")[0].rpartition("/")[0] or ".")
    head = pattern.split("*")[0].rpartition("/")[0]
    tail = pattern[len(head) :].lstrip("/") if head else pattern
    found = sorted(f"{head}/{p.relative_to(root)}" if head else str(p.relative_to(root)) for p in Path(root).glob(tail))
    if not found:
        raise ConfigError(f"the pattern `{pattern}` matches no file")
    return found


def permuted(paths: Sequence[str], seed: int) -> list[str]:
    """Paths shuffled by Python's own generator."""
    order = list(range(len(paths)))
    random.Random(seed).shuffle(order)
    return [paths[i] for i in order]


def _mixture_paths(read: Arguments, files: Files, dtype: str) -> tuple[list[str], list[int]]:
    index = read.get("path_offset_index")
    if index is not None:
        items = [(str(k), int(n)) for k, n in index.items()] if isinstance(index, Mapping) else [(str(x[0]), int(x[-1])) for x in index]
        given = [str(p) for p in read.listed("paths")]
        if given and len(given) != len(items):
            raise ConfigError(f"`path_offset_index` has {len(items)} entries, `paths` {len(given)}")
        return given or [p for p, _ in items], [n for _, n in items]
    block = Arguments(
        "source_mixture_config", read.mapping("source_mixture_config"), ("source_list", "requested_tokens", "global_batch_size", "seed"),
        ("_CLASS_", "processes", "render_tables", "quiet"),
    )  # fmt: skip
    listed = block.get("source_list")
    sources = listed.get("sources") if isinstance(listed, Mapping) else listed
    if not sources:
        raise ConfigError("`source_mixture_config` needs `source_list`")
    names: list[list[str]] = []
    described = []
    for s in sources:
        one = Arguments("a source of the mixture", s, ("source_name", "target_ratio", "paths", "max_repetition_ratio", "max_source_fraction"), ("_CLASS_",))
        paths = [p for text in one.listed("paths") for p in (expand(str(text), files) if "*" in str(text) else [str(text)])]
        names.append(paths)
        sizes = tuple(Path(files.locate(p)).stat().st_size // np.dtype(dtype).itemsize for p in paths)
        described.append(
            MixedSource(
                one.text("source_name", ""), one.number("target_ratio"), sizes, one.number("max_repetition_ratio", 1.0), one.number("max_source_fraction", 1.0)
            )
        )
    found = mixture(
        described, block.integer("requested_tokens", least=1), block.integer("global_batch_size", least=1), read.integer("sequence_length", least=1)
    )
    return [names[s][i] for s, i, _ in found], [n for *_, n in found]


def _interleaved(read: Arguments, stores: Sequence[ArrayStore], paths: Sequence[str], words: Tokenizer) -> InterleavedInstances:
    exempt = {str(p) for p in read.listed("interleaving_exempt_paths")}
    width, per = read.integer("sequence_length", least=1), read.integer("docs_per_instance", least=1)
    chunks = read.integer("chunks_per_doc", least=1)
    if width % per or width % chunks:
        raise ConfigError(
            f"sequence_length {width} must be a multiple of docs_per_instance {per} and of chunks_per_doc {chunks}", hint="OLMo-core refuses this too"
        )
    documents = PaddedInstances(stores, width, _pad(words))
    return InterleavedInstances(documents, read.integer("seed"), per, chunks, int(words.end or 0), words.begin, [p in exempt for p in paths])


def _curriculum(given: Mapping[str, Any]) -> Curriculum:
    read = Arguments("vsl_curriculum", given, ("name", "num_cycles", "balanced"), ("_CLASS_",))
    name = read.choice("name", ("natural", "grow_p2", "grow_linear"), "natural")
    if name == "natural":
        return Curriculum()
    return Curriculum(name, read.integer("num_cycles", least=1), read.flag("balanced"))


def _packed(read: Arguments, stores: Sequence[ArrayStore], paths: Sequence[str], words: Tokenizer, caches: Sequence[Path]) -> tuple[PackedInstances, str]:
    width, size = read.integer("sequence_length", least=1), read.integer("source_group_size", 1, least=1)
    strategy = read.choice("long_doc_strategy", ("truncate", "fragment"), "truncate")
    listed = read.get("use_array_if_local") is False
    groups = []
    for at in range(0, len(paths), size):
        own = range(at, min(at + size, len(paths)))
        found = _cached_packing(width, [(paths[i], stores[i].size_bytes) for i in own], strategy, read.get("use_array_if_local"), caches)
        first = offsets_of(np.array([stores[i].n_tokens for i in own], np.int64))
        groups.append(Group(tuple(own), first, found or _fresh_packing([stores[i] for i in own], first, width, strategy, listed)))
    out = PackedInstances(_scanned(stores, words), groups, width, _pad(words))
    tied = "documents of equal length were packed here and may have been packed otherwise where the run was" if out.tied else ""
    return out, tied


def _cached_packing(width: int, paths: Sequence[tuple[str, int]], strategy: str, from_array: object, caches: Sequence[Path]) -> Packing | None:
    extra = [strategy, "uint64", *([f"use_array_if_local={from_array}"] if from_array is not None else [])]
    names = cache_names(width, paths, extra)
    for folder in caches:
        for place in (folder, folder / "dataset-common"):
            if all((place / name).is_file() for name in names):
                return read_packing(*(place / name for name in names))
    return None


def _fresh_packing(stores: Sequence[ArrayStore], first: Any, width: int, strategy: str, listed: bool) -> Packing:
    starts, stops = [], []
    for store, base in zip(stores, first.tolist()):
        if listed:
            if store.listed is None:
                raise ConfigError(f"`use_array_if_local: false` needs {store.path.name.removesuffix('.npy')}.csv.gz beside {store.path}")
            begin, end = store.listed[:, 0], store.listed[:, 1]
        else:
            end = store.ends
            begin = np.r_[np.zeros(min(len(end), 1), np.int64), end[:-1]]
        begin, end = cut_long(begin, end, width, strategy)
        starts.append(begin + base)
        stops.append(end + base)
    return pack(np.concatenate(starts), np.concatenate(stops), width)


def _fields(kind: str, read: Arguments, words: Tokenizer, dtype: str, paths: Sequence[str]) -> tuple[tuple[str, object], ...]:
    """The fields that the library's fingerprint of a data set is made of, in its order."""
    base: list[tuple[str, object]] = [
        ("vocab_size", words.vocabulary),
        ("pad_token_id", words.pad),
        ("eos_token_id", words.end),
        ("dtype", f"<class 'numpy.{dtype}'>"),
    ]
    target = ("max_target_sequence_length", read.get("max_target_sequence_length"))
    begin, width = ("bos_token_id", words.begin), ("sequence_length", read.get("sequence_length"))
    if kind in ("fsl", "mixture"):
        return (*base, target, begin)
    if kind == "padded":
        return (*base, ("max_target_sequence_length", None), begin, width)
    if kind == "packed":
        grouped = [("source_group_size", read.get("source_group_size"))] if read.integer("source_group_size", 1) > 1 else []
        return (*base, ("long_doc_strategy", read.text("long_doc_strategy", "truncate")), begin, width, *grouped)
    return ()
