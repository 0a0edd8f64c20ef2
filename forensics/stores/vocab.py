"""Token id -> bytes, once per tokenizer: decoding and per-id features without the tokenizer's own code.

A training set is a memory map of ids; every question about its text starts at this table. Read are `tokenizer.json` (byte-level BPE,
and BPE or Unigram with byte fallback and Metaspace), SentencePiece `.model` files, tiktoken rank files, Tekken files and a bare `vocab.json`
in GPT-2's alphabet. Decoding gives what the tokenizer's own library gives, byte for byte: `tokenizers` 0.20-0.23, `tiktoken` 0.7-0.14 and
`sentencepiece` 0.2 differ in what an incomplete character becomes, hence `rule`.
The byte vocabulary (id = byte) lets the same kernels run on text.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import digest, open_binary, writing

Rule = Literal["lossy", "group", "sentencepiece"]
FORMAT = 3
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
NAMES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
KNOWN = "tokenizer.json, SentencePiece .model, tiktoken rank files, Tekken, vocab.json"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of every id.

    Attributes:
        data: uint8 [total bytes], the bytes of id 0, 1, ... one after the other.
        starts: int64 [size + 1], where each id's bytes begin.
        special: bool [size], ids that stand for no text (end of document, padding, control tokens).
        fallback: bool [size], ids that are one raw byte of a character the vocabulary lacks.
        rule: what the library makes of bytes that are no UTF-8: `lossy` (as Python's `replace`), `group` (each byte of a bad run of
            fallback ids becomes U+FFFD), `sentencepiece` (the same, character by character).
        strip: whether one leading space of the whole text is dropped.
        hash: of the vocabulary's content, hexadecimal.
        kind: `byte`, `bpe`, `sentencepiece`, `tiktoken`, `tekken`.
        unknown: id of every character that the vocabulary lacks, where it has no bytes for them; -1 where there is none.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    special: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    rule: Rule
    strip: bool
    hash: str
    kind: str
    unknown: int = -1

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.starts) - 1

    @property
    def fingerprint(self) -> str:
        """For stored results."""
        return self.hash

    @property
    def table(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Bytes of all ids, and where each id's begin."""
        return self.data, self.starts

    @functools.cached_property
    def lengths(self) -> NDArray[np.int32]:
        """int32 [size]: bytes per id."""
        return np.diff(self.starts).astype(np.int32)

    @functools.cached_property
    def plain_lengths(self) -> NDArray[np.int32]:
        """int32 [size]: bytes per id, nothing for special ids."""
        return np.where(self.special, 0, self.lengths).astype(np.int32)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id; none for ids that are not in the vocabulary."""
        return self.data[self.starts[token] : self.starts[token + 1]].tobytes() if 0 <= token < self.size else b""

    def raw(self, tokens: NDArray[Any], *, special: bool = True) -> NDArray[np.uint8]:
        """Bytes of a run of ids, one after the other.

        Args:
            tokens: integers [n].
            special: whether special ids give their written form; ids beyond the vocabulary give nothing.

        Returns:
            uint8 [bytes].
        """
        from forensics.stores.decode import copy_bytes

        if self.kind == "byte":
            return np.asarray(tokens, np.uint8)
        ids = ids_of(tokens)
        return copy_bytes(ids, self, special=special)

    def decode(self, tokens: NDArray[Any], *, special: bool = True) -> bytes:
        """The bytes of a run of ids, whether they are UTF-8 or not."""
        return self.raw(tokens, special=special).tobytes()

    def text(self, tokens: NDArray[Any], *, special: bool = True) -> str:
        """Text of a run of ids, as the tokenizer's own library writes it."""
        raw = self.raw(tokens, special=special).tobytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace") if self.rule == "lossy" else self._decode_groups(np.asarray(tokens), special)
        return text[1:] if self.strip and text.startswith(" ") else text

    def texts(self, tokens: NDArray[Any], offsets: NDArray[np.int64], *, special: bool = True) -> list[str]:
        """Texts of many documents laid one after the other; `offsets` int64 [n + 1]."""
        from forensics.stores.decode import document_bytes

        ids = tokens if self.kind == "byte" else ids_of(tokens)
        bounds = offsets.tolist()
        if self.rule != "lossy" or self.strip:
            return [self.text(ids[a:b], special=special) for a, b in zip(bounds[:-1], bounds[1:])]
        raw = self.raw(ids[bounds[0] : bounds[-1]], special=special)
        at = document_bytes(ids, np.asarray(offsets, np.int64), self.lengths if special else self.plain_lengths).tolist()
        view = memoryview(raw.data)
        return [str(view[a:b], "utf-8", "replace") for a, b in zip(at[:-1], at[1:])]

    def beyond(self, tokens: NDArray[Any]) -> int:
        """How many ids lie outside of the vocabulary: more than a few mean a wrong tokenizer."""
        ids = ids_of(tokens)
        return int(np.count_nonzero(ids >= self.size))

    def _decode_groups(self, tokens: NDArray[Any], special: bool) -> str:
        out: list[str] = []
        group = bytearray()
        for token in ids_of(tokens).tolist():
            if token >= self.size or (self.special[token] and not special):
                continue
            if self.fallback[token]:
                group += self.bytes_of(token)
                continue
            out.append(_group_text(bytes(group), self.rule))
            group.clear()
            out.append(self.bytes_of(token).decode("utf-8", "replace"))
        out.append(_group_text(bytes(group), self.rule))
        return "".join(out)


def ids_of(tokens: NDArray[Any]) -> NDArray[np.uint32]:
    """Ids of any integer type as uint32 [n]; what does not fit (negative, beyond 32 bits) becomes the largest value."""
    array = np.asarray(tokens)
    if array.dtype == np.uint32:
        return array
    if not array.size:
        return np.zeros(0, np.uint32)
    if array.dtype.kind == "u" and array.dtype.itemsize < 4:
        return array.astype(np.uint32)
    if array.dtype == np.int32:
        return array.view(np.uint32) if array.flags.c_contiguous else array.astype(np.uint32)
    if array.dtype.kind not in "iu":
        raise StoreError(f"token ids of type {array.dtype} cannot be read, they must be integers")
    wide = array.astype(np.int64) if array.dtype.kind == "i" else array
    return np.where((wide < 0) | (wide > 0xFFFFFFFF), 0xFFFFFFFF, wide).astype(np.uint32)


def _group_text(raw: bytes, rule: Rule) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if rule == "group":
            return "\ufffd" * len(raw)
    out, at = [], 0
    while at < len(raw):  # sentencepiece: a whole character where one stands, else one U+FFFD per byte
        for width in (1, 2, 3, 4):
            try:
                out.append(raw[at : at + width].decode("utf-8"))
            except UnicodeDecodeError:
                continue
            at += width
            break
        else:
            out.append("\ufffd")
            at += 1
    return "".join(out)


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """Id = byte: text as token ids."""
    none = np.zeros(256, np.bool_)
    return Vocabulary(np.arange(256, dtype=np.uint8), np.arange(257, dtype=np.int64), none, none, "lossy", False, "bytes", "byte")


def open_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer file or of the folder that holds one, from the user's cache where it was read before.

    Raises:
        StoreError: no tokenizer there, a format that is not known, or a damaged file.
    """
    file = _file_of(path)
    try:
        with open_binary(file) as stream:
            content = stream.read()
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error})", hint="give the folder or file of the tokenizer that the ids were made with") from error
    mark = digest(FORMAT, content)
    stored = cache_folder() / f"vocabulary-{mark}.npz"
    found = _load(stored, mark)
    if found is None:
        found = parse_vocabulary(content, str(file), mark)
        _save(stored, found)
    return found


def cache_folder() -> Path:
    """Where derived tables are kept: `$FORENSICS_CACHE`, else the user's cache folder."""
    given = os.environ.get("FORENSICS_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forensics"


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = (
        [path / n for n in NAMES if (path / n).is_file()] + sorted(path.glob("*.tiktoken")) + sorted(path.glob("*.model*")) + sorted(path.glob("tekken*.json"))
    )
    if not found:
        raise StoreError(f"{path} holds no tokenizer", hint=f"looked for {', '.join(NAMES)}, *.tiktoken, *.model")
    return found[0]


def _load(stored: Path, mark: str) -> Vocabulary | None:
    try:
        with np.load(stored, allow_pickle=False) as z:
            kind, rule, strip, unknown = (str(x) for x in z["words"])
            return Vocabulary(z["data"], z["starts"], z["special"], z["fallback"], rule, strip == "True", mark, kind, int(unknown))  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, EOFError, binascii.Error):  # absent or torn: it is rebuilt
        return None


def _save(stored: Path, v: Vocabulary) -> None:
    from forensics.errors import ForensicsError

    try:
        with writing(stored) as part, part.open("wb") as out:
            np.savez(out, data=v.data, starts=v.starts, special=v.special, fallback=v.fallback, words=np.array([v.kind, v.rule, str(v.strip), str(v.unknown)]))
    except (ForensicsError, OSError):  # a cache that cannot be written costs time, not the result
        pass


def parse_vocabulary(content: bytes, where: str, mark: str | None = None) -> Vocabulary:
    """The vocabulary from a tokenizer file's bytes.

    Raises:
        StoreError: a format that is not known, or a damaged file.
    """
    mark = mark or digest(FORMAT, content)
    try:
        head = content.lstrip()[:1]
        if head == b"{":
            parsed = json.loads(content)
            return _parse_json(parsed, where, mark)
        if re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", content):
            return _parse_tiktoken(content, mark)
        return _parse_sentencepiece(content, mark)
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{where} is no tokenizer file that can be read ({type(error).__name__}: {error})",
            hint=f"known: {KNOWN}",
        ) from error


def _assemble(
    pieces: Mapping[int, bytes], special: Iterable[int], fallback: Iterable[int], rule: Rule, strip: bool, mark: str, kind: str, unknown: int | None = None
) -> Vocabulary:
    size = max(pieces, default=-1) + 1
    if size <= 0 or size > 1 << 26:
        raise ValueError(f"a vocabulary of {size} ids")
    parts = [pieces.get(i, b"") for i in range(size)]
    starts = np.zeros(size + 1, np.int64)
    np.cumsum([len(p) for p in parts], out=starts[1:])
    flags = []
    for chosen in (special, fallback):
        flag = np.zeros(size, np.bool_)
        flag[[i for i in chosen if i < size]] = True
        flags.append(flag)
    data = np.frombuffer(b"".join(parts), np.uint8).copy()
    return Vocabulary(data, starts, flags[0], flags[1], rule, strip, mark, kind, -1 if unknown is None or fallback else unknown)


@functools.cache
def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in set(kept)]
    return {**{chr(b): b for b in kept}, **{chr(256 + n): b for n, b in enumerate(moved)}}


def _byte_level(token: str) -> bytes:
    table = _alphabet()
    try:
        return bytes([table[c] for c in token])
    except KeyError:  # a token of other characters stands for itself
        return token.encode("utf-8", "surrogatepass")


def _metaspace(token: str) -> bytes:
    return token.replace(SPACE, " ").encode("utf-8", "surrogatepass")


def _decoders(node: Any) -> list[dict[str, Any]]:
    if not node:
        return []
    return [d for part in node["decoders"] for d in _decoders(part)] if node["type"] == "Sequence" else [node]


def _parse_json(parsed: Any, where: str, mark: str) -> Vocabulary:
    if "config" in parsed and isinstance(parsed.get("vocab"), list):
        return _parse_tekken(parsed, mark)
    if not isinstance(parsed.get("model"), dict):  # GPT-2's vocab.json: token -> id, "model" among the tokens
        if not all(type(i) is int for i in parsed.values()) or not 0 <= max(parsed.values(), default=-1) < 2 * len(parsed):  # ids without great gaps
            raise StoreError(f"{where} holds no vocabulary: its keys are {', '.join(sorted(parsed)[:8]) or 'none'}", hint=f"known: {KNOWN}")
        names = {int(i): _byte_level(t) for t, i in parsed.items()}
        ends = [i for t, i in parsed.items() if re.fullmatch(r"<\|[\w ]+\|>|</?s>|<pad>|<unk>", t)]
        return _assemble(names, ends, (), "lossy", False, mark, "bpe")
    kinds = [d["type"] for d in _decoders(parsed.get("decoder"))]
    vocab = parsed["model"]["vocab"]
    tokens = {int(i): t for t, i in vocab.items()} if isinstance(vocab, dict) else {i: row[0] for i, row in enumerate(vocab)}
    tokens |= {int(a["id"]): a["content"] for a in parsed.get("added_tokens") or ()}
    special = [int(a["id"]) for a in parsed.get("added_tokens") or () if a.get("special")]
    if "ByteLevel" in kinds:
        return _assemble({i: _byte_level(t) for i, t in tokens.items()}, special, (), "lossy", False, mark, "bpe")
    if "WordPiece" in kinds or parsed["model"].get("type") == "WordPiece":
        raise StoreError(f"{where} is a WordPiece tokenizer, whose decoding loses spaces and case: its ids cannot be turned back into text")
    fallback = {i: bytes.fromhex(m[1]) for i, t in tokens.items() if "ByteFallback" in kinds and (m := FALLBACK.match(t))}
    write: Callable[[str], bytes] = _metaspace if {"Metaspace", "Replace"} & set(kinds) else lambda t: t.encode("utf-8", "surrogatepass")
    strip = any(
        d["type"] == "Metaspace" and d.get("prepend_scheme", "always") != "never" and d.get("add_prefix_space", True) for d in _decoders(parsed["decoder"])
    )
    strip |= any(d["type"] == "Strip" and d.get("start") for d in _decoders(parsed["decoder"]))
    unknown = parsed["model"].get("unk_id", next((i for i, t in tokens.items() if t == parsed["model"].get("unk_token")), None))
    return _assemble({i: fallback.get(i) or write(t) for i, t in tokens.items()}, special, fallback, "group", strip, mark, "sentencepiece", unknown)


def _parse_tekken(parsed: Any, mark: str) -> Vocabulary:
    config = parsed["config"]
    n_special = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - n_special
    pieces = {n_special + int(t["rank"]): base64.b64decode(t["token_bytes"]) for t in parsed["vocab"][:size]}
    names = {int(t["rank"]): t["token_str"].encode() for t in parsed.get("special_tokens") or ()}
    named = {i: names.get(i, f"<SPECIAL_{i}>".encode()) for i in range(n_special)}
    return _assemble({**named, **pieces}, range(n_special), (), "lossy", False, mark, "tekken")


# special ids that the files do not carry, by the number of ranks (tiktoken's own registry of encodings)
TIKTOKEN_SPECIAL: dict[int, dict[str, int]] = {
    50256: {"<|endoftext|>": 50256},
    50280: {"<|endoftext|>": 50256},
    100256: {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276},
    199998: {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}


def _parse_tiktoken(content: bytes, mark: str) -> Vocabulary:
    pieces = {}
    for line in content.split(b"\n"):
        if line.strip():
            token, rank = line.split()
            pieces[int(rank)] = base64.b64decode(token, validate=True)
    special = TIKTOKEN_SPECIAL.get(len(pieces), {})
    return _assemble({**pieces, **{i: name.encode() for name, i in special.items()}}, special.values(), (), "lossy", False, mark, "tiktoken")


def _parse_sentencepiece(content: bytes, mark: str) -> Vocabulary:
    pieces: dict[int, bytes] = {}
    special, fallback, missing = [], [], None
    strip = True
    unknown = " \N{DOUBLE QUESTION MARK} ".encode()
    for field, value in protobuf_fields(content):
        if field == 1:
            i = len(pieces)
            parts = dict(protobuf_fields(value))
            text = bytes(parts[1]).decode("utf-8")
            kind = int(parts.get(3, 1))
            if kind == 6 and (m := FALLBACK.match(text)):
                pieces[i] = bytes.fromhex(m[1])
                fallback.append(i)
            else:
                pieces[i] = unknown if kind == 2 else b"" if kind == 3 else _metaspace(text)
                special += [i] if kind in (2, 3) else []
                missing = i if kind == 2 else missing
        elif field == 2:
            unknown = next((bytes(v) for f, v in protobuf_fields(value) if f == 44), unknown)
        elif field == 3:
            strip = bool(dict(protobuf_fields(value)).get(3, 1))
    return _assemble(pieces, special, fallback, "sentencepiece", strip, mark, "sentencepiece", missing)


def protobuf_fields(raw: bytes) -> Iterable[tuple[int, Any]]:
    """Fields of one protobuf message: number and value (integer, or bytes).

    Raises:
        ValueError: when these bytes are no protobuf message.
    """
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(raw, at)
        if size is None or at + size > len(raw) or not key >> 3:
            raise ValueError(f"no protobuf message at byte {at}")
        yield key >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"no protobuf message at byte {at}")
