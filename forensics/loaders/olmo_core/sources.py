"""Instance and token sources of the composable loader, built from their configurations.

Names and defaults: olmo_core/data/composable, read in 3.0.0. A seed that the configuration does not give is not guessed:
`seed: null` means unshuffled, anything else must be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forensics.errors import ConfigError, NotReplayable, nearest
from forensics.loaders.arguments import Arguments
from forensics.loaders.olmo_core.composable import (
    ChunkedInstances,
    Picked,
    Share,
    Tokens,
    concatenated,
    joined,
    mixed,
    numpy_source,
    packed_sources,
    plain,
    sampled,
    sampled_documents,
    sampled_tokens,
    shares_of,
    split,
)
from forensics.loaders.olmo_core.config import Files, Tokenizer, expand, permuted, read_tokenizer

LABELS = ("_CLASS_", "type", "label")


def kind_of(given: Mapping[str, Any]) -> str:
    """The class of a source, without `Config`."""
    name = str(given.get("_CLASS_") or given.get("type") or "").rpartition(".")[2]
    return name.removesuffix("Config")


@dataclass
class Builder:
    """Builds sources over one set of files.

    Args:
        files: the run's files, added to.
        tokenizer: of the loader; a source may bring its own.
    """

    files: Files
    tokenizer: Tokenizer

    def instances(self, given: Mapping[str, Any]) -> Picked:
        """An instance source.

        Raises:
            NotReplayable: one that is not modelled.
        """
        kind = kind_of(given)
        if kind not in _INSTANCES:
            raise NotReplayable(f"the instance source `{kind}` of OLMo-core is not modelled{nearest(kind, _INSTANCES)}", hint=f"known: {', '.join(_INSTANCES)}")
        return _INSTANCES[kind](self, given)

    def tokens(self, given: Mapping[str, Any]) -> list[Tokens]:
        """A token or document source; several where files are kept apart.

        Raises:
            NotReplayable: one that is not modelled.
        """
        kind = kind_of(given)
        if kind not in _TOKENS:
            raise NotReplayable(f"the token source `{kind}` of OLMo-core is not modelled{nearest(kind, _TOKENS)}", hint=f"known: {', '.join(_TOKENS)}")
        return _TOKENS[kind](self, given)

    def all_tokens(self, block: Arguments) -> list[Tokens]:
        """All sources of a block's `sources`."""
        return [t for s in _several(block, "sources") for t in self.tokens(s)]

    def _chunked(self, given: Mapping[str, Any]) -> Picked:
        read = Arguments("ConcatAndChunkInstanceSource", given, ("sources", "sequence_length", "max_sequence_length"), LABELS)
        width = read.integer("sequence_length", least=1)
        longest = read.integer("max_sequence_length", width, least=width)
        if longest % width:
            raise ConfigError(f"max_sequence_length {longest} is no multiple of sequence_length {width}")
        return plain(ChunkedInstances(self.files.stores, self.all_tokens(read), width, longest))

    def _packing(self, given: Mapping[str, Any]) -> Picked:
        names = ("sources", "sequence_length", "max_sequence_length", "tokenizer", "long_doc_strategy", "source_group_size")
        read = Arguments("PackingInstanceSource", given, names, LABELS)
        words = read_tokenizer(read) if "tokenizer" in read else self.tokenizer
        width = read.integer("sequence_length", least=1)
        if read.integer("max_sequence_length", width) != width:
            raise ConfigError("a packing source needs max_sequence_length equal to sequence_length", hint="OLMo-core refuses this too")
        if words.pad is None:
            raise ConfigError("a packing source needs the tokenizer's `pad_token_id`")
        strategy = read.choice("long_doc_strategy", ("truncate", "fragment"), "truncate")
        return plain(
            packed_sources(
                self.files.stores,
                self.all_tokens(read),
                width=width,
                pad=words.pad,
                strategy=strategy,
                group_size=read.integer("source_group_size", 1, least=1),
            )
        )

    def _joined(self, given: Mapping[str, Any]) -> Picked:
        return joined([self.instances(s) for s in _several(Arguments("ConcatenatedInstanceSource", given, ("sources",), LABELS), "sources")])

    def _sampling(self, given: Mapping[str, Any]) -> Picked:
        read = Arguments("SamplingInstanceSource", given, ("sources", "max_tokens", "max_instances", "factor", "seed"), LABELS)
        sources = [self.instances(s) for s in _several(read, "sources")]
        if sum(name in read for name in ("max_tokens", "max_instances", "factor")) != 1:
            raise ConfigError("SamplingInstanceSource needs one of `max_tokens`, `max_instances` and `factor`")
        most = read.optional("max_instances")
        if most is None:
            tokens = read.optional("max_tokens")
            most = (int(read.number("factor") * sum(s.size for s in sources)) if tokens is None else tokens) // sources[0].width
        return sampled(sources, most, seed_of(read))

    def _mixing(self, given: Mapping[str, Any]) -> Picked:
        read = Arguments("MixingInstanceSource", given, ("source_specs", "seed", "num_tokens", "num_instances"), LABELS)
        specs = [_spec(s) for s in _several(read, "source_specs")]
        sources = [(self.instances(s.mapping("source")), s.number("ratio"), s.number("max_repetition_factor", 1.0)) for s in specs]
        target = read.optional("num_tokens")
        if "num_instances" in read:
            target = read.integer("num_instances") * sources[0][0].width
        return mixed(sources, target, seed_of(read))

    def _split(self, given: Mapping[str, Any]) -> Picked:
        read = Arguments("SplitInstanceSource", given, ("source", "ratio", "idx", "seed"), LABELS)
        return split(self.instances(read.mapping("source")), read.number("ratio"), read.integer("idx") == 1, seed_of(read))

    def _numpy(self, given: Mapping[str, Any]) -> list[Tokens]:
        names = (
            "source_paths",
            "tokenizer",
            "dtype",
            "source_permutation_seed",
            "source_group_size",
            "expand_glob",
            "max_document_length",
            "long_doc_strategy",
        )
        read = Arguments("NumpyDocumentSource", given, names, (*LABELS, "label_mask_paths"))
        words = read_tokenizer(read) if "tokenizer" in read else self.tokenizer
        given_paths = [str(p) for p in read.listed("source_paths")]
        paths = given_paths
        if read.flag("expand_glob", any("*" in p for p in given_paths)):
            paths = [p for text in given_paths for p in (expand(text, self.files) if "*" in text else [text])]
        if (seed := read.optional("source_permutation_seed")) is not None:
            # The library permutes as many places as there are patterns, not files.
            paths = permuted(paths[: len(given_paths)], seed)
        dtype = words.dtype(read.get("dtype"))
        numbers = [self.files.number(p, dtype, words.end, words.begin) for p in paths]
        stores = [self.files.stores[n] for n in numbers]
        size = read.integer("source_group_size", 1, least=-1)
        if size == -1:
            return [numpy_source(numbers, stores, read.optional("max_document_length"), read.choice("long_doc_strategy", ("truncate", "fragment"), "truncate"))]
        # Split by files, the library forgets the longest document length.
        return [numpy_source(numbers[i : i + size], stores[i : i + size]) for i in range(0, len(numbers), size)]

    def _joined_tokens(self, given: Mapping[str, Any]) -> list[Tokens]:
        return [concatenated(self.all_tokens(Arguments(kind_of(given), given, ("sources",), LABELS)))]

    def _sampled(self, given: Mapping[str, Any], how: Callable[[list[Tokens], int, int | None], Tokens]) -> list[Tokens]:
        read = Arguments(kind_of(given), given, ("sources", "max_tokens", "factor", "seed"), LABELS)
        sources = self.all_tokens(read)
        if ("max_tokens" in read) == ("factor" in read):
            raise ConfigError(f"{read.owner} needs one of `max_tokens` and `factor`")
        most = read.optional("max_tokens")
        return [how(sources, int(read.number("factor") * sum(s.size for s in sources)) if most is None else most, seed_of(read))]

    def _mixed_tokens(self, given: Mapping[str, Any], how: Callable[[list[Tokens], int, int | None], Tokens]) -> list[Tokens]:
        read = Arguments(kind_of(given), given, ("source_specs", "seed", "num_tokens"), LABELS)
        specs = [_spec(s) for s in _several(read, "source_specs")]
        sources = [_one(self.tokens(s.mapping("source"))) for s in specs]
        sizes = shares_of(
            [Share(t.size, s.number("ratio"), s.number("max_repetition_factor", 1.0)) for t, s in zip(sources, specs)], read.optional("num_tokens")
        )
        seed = seed_of(read)
        parts = [how([t], n, None if seed is None else seed + i) for i, (t, n) in enumerate(zip(sources, sizes))]
        whole = concatenated(parts)
        return [Tokens(whole.file, whole.start, whole.stop, whole.documents, tuple(parts) if how is sampled_tokens else ())]

    def _split_tokens(self, given: Mapping[str, Any]) -> list[Tokens]:
        read = Arguments("SplitTokenSource", given, ("source", "ratio", "idx"), LABELS)
        source = _one(self.tokens(read.mapping("source")))
        at = int(read.number("ratio") * source.size)
        return [source.sliced(at, source.size) if read.integer("idx") == 1 else source.sliced(0, at)]


def _one(sources: list[Tokens]) -> Tokens:
    return sources[0] if len(sources) == 1 else concatenated(sources)


def _several(read: Arguments, name: str) -> list[Any]:
    found = read.listed(name)
    if not found:
        raise ConfigError(f"{read.owner} needs `{name}`, and at least one")
    return found


def _spec(given: Mapping[str, Any]) -> Arguments:
    return Arguments("a source of a mixture", given, ("source", "ratio", "max_repetition_factor"), LABELS)


def seed_of(read: Arguments) -> int | None:
    """The seed of a source.

    Raises:
        NotReplayable: none is given, so that the library drew one from its process-wide generator.
    """
    if "seed" not in read.given:
        raise NotReplayable(
            f"the seed of a {read.owner} is not given; where it was left unset, OLMo-core drew it from a generator of the whole process",
            hint="take it from the saved configuration; `seed: null` says that nothing was shuffled",
        )
    return read.optional("seed")


_INSTANCES: dict[str, Callable[[Builder, Mapping[str, Any]], Picked]] = {
    "ConcatAndChunkInstanceSource": Builder._chunked,
    "PackingInstanceSource": Builder._packing,
    "ConcatenatedInstanceSource": Builder._joined,
    "SamplingInstanceSource": Builder._sampling,
    "MixingInstanceSource": Builder._mixing,
    "SplitInstanceSource": Builder._split,
}
_TOKENS: dict[str, Callable[[Builder, Mapping[str, Any]], list[Tokens]]] = {
    "NumpyDocumentSource": Builder._numpy,
    "ConcatenatedTokenSource": Builder._joined_tokens,
    "ConcatenatedDocumentSource": Builder._joined_tokens,
    "SamplingTokenSource": lambda b, given: b._sampled(given, sampled_tokens),
    "SamplingDocumentSource": lambda b, given: b._sampled(given, sampled_documents),
    "MixingTokenSource": lambda b, given: b._mixed_tokens(given, sampled_tokens),
    "MixingDocumentSource": lambda b, given: b._mixed_tokens(given, sampled_documents),
    "SplitTokenSource": Builder._split_tokens,
}
