"""A pickle reader that builds inert values and runs nothing.

Checkpoints are pickles that name the trainer's own classes, which are not installed where a run is looked into, and a
pickle may ask for any function to be called. This machine knows the opcodes and a handful of harmless builders (tuples,
ordered dictionaries, bytes, array headers); every other class or function becomes a `Named`, every call a `Made` that
remembers what was asked for. Nothing is imported and nothing is called by name.

It is bounded where a hostile stream could hurt: opcodes, bytes produced, open marks and the size of dictionary keys
(hashing a deep or shared tuple is the one recursive step that building values needs). `forensics.unpickle` opens the files
around it and reads tensors.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from forensics.inert import Array, Limits, Made, Named, PickleProblem

KEY_NODES = 4096  # nodes of one dictionary key; the largest real ones are a name with a short shape


class _Mark:
    """The mark on the stack."""


_MARK = _Mark()
_U16, _U32, _I32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<Q")
_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_NUMPY = {"numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric"}


def _bytes(value: object) -> bytes:
    """The bytes that an array's state carries: bytes, or text that stands for them in old protocols."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("latin-1")
    raise PickleProblem("an array without its bytes")


def _integers(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value):
        return tuple(int(n) for n in value)
    raise PickleProblem("a shape that is not a list of numbers")


def _dtype_text(value: object) -> str:
    """The dtype string of a pickled `numpy.dtype` with its byte order; '' for compound ones."""
    if not isinstance(value, Made) or not value.args or not isinstance(value.args[0], str):
        return ""
    order = value.extra[1] if isinstance(value.extra, tuple) and len(value.extra) > 1 else None
    return (order if order in ("<", ">") else "") + value.args[0]


class Machine:
    """One pass over one pickle stream.

    Args:
        data: the bytes; a memory map is fine.
        persistent: gives the value of a persistent id (torch's storages).
        limits: what it may cost.
    """

    def __init__(self, data: bytes | mmap.mmap, persistent: Callable[[object], object] | None = None, limits: Limits | None = None, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.limits = limits or Limits()
        self.persistent = persistent or (lambda pid: Made(Named("pickle", "persistent_id"), (pid,)))
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.marks = 0
        self.produced = 0

    # ---- reading the stream

    def take(self, n: int) -> bytes:
        """The next `n` bytes of the stream."""
        start, stop = self.position, self.position + n
        if n < 0 or stop > len(self.data):
            raise PickleProblem(f"the pickle ends at byte {len(self.data)}, {n} more bytes were announced at {start}")
        self.position = stop
        return self.data[start:stop]

    def byte(self) -> int:
        """The next byte as a number."""
        at = self.position
        if at >= len(self.data):
            raise PickleProblem(f"the pickle ends at byte {at}, inside an instruction")
        self.position = at + 1
        return self.data[at]

    def number(self, form: struct.Struct) -> int:
        """The next number of a fixed width."""
        at = self.position
        self.position = at + form.size
        return int(form.unpack_from(self.data, at)[0])

    def line(self) -> bytes:
        """The stream up to the next line feed."""
        at = self.data.find(b"\n", self.position)
        if at < 0 or at - self.position > self.limits.stream:
            raise PickleProblem("the pickle ends inside a line")
        out = bytes(self.data[self.position : at])
        self.position = at + 1
        return out

    def text(self, n: int) -> str:
        """The next `n` bytes as text."""
        return str(self.take(n), "utf-8", "surrogatepass")

    # ---- the stack

    def pop(self) -> object:
        """Take the uppermost value."""
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleProblem("the pickle takes a value that is not there")
        return self.stack.pop()

    def top(self) -> object:
        """The uppermost value, left in place."""
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleProblem("the pickle takes a value that is not there")
        return self.stack[-1]

    def since_mark(self) -> list[object]:
        """Take all values above the last mark, and the mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                out = self.stack[at + 1 :]
                del self.stack[at:]
                self.marks -= 1
                return out
        raise PickleProblem("the pickle closes a mark it never opened")

    def charge(self, n: int) -> None:
        """Count what a builder copies against the limit."""
        self.produced += n
        if self.produced > self.limits.produced:
            raise PickleProblem(f"the pickle asks for more than {self.limits.produced} bytes and elements to be copied")

    def key(self, value: object) -> object:
        """A value fit to be a dictionary key: small, so that hashing is bounded."""
        if isinstance(value, (tuple, frozenset)):
            pending: list[object] = [value]
            nodes = 0
            while pending:
                one = pending.pop()
                nodes += 1
                if nodes > KEY_NODES:
                    raise PickleProblem("the pickle uses a very large tuple as a key")
                if isinstance(one, (tuple, frozenset)):
                    pending.extend(one)
                elif isinstance(one, (list, dict, set, bytearray)):
                    raise PickleProblem(f"the pickle uses a {type(one).__name__} as a key")
        elif isinstance(value, (list, dict, set, bytearray)):
            raise PickleProblem(f"the pickle uses a {type(value).__name__} as a key")
        return value

    # ---- building

    def fill(self, target: object, pairs: list[object]) -> None:
        """Put keys and values (alternating) into a dictionary."""
        if len(pairs) % 2:
            raise PickleProblem("a key without a value")
        if isinstance(target, Made):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            for k, v in zip(pairs[::2], pairs[1::2], strict=True):
                target[k if type(k) is str else self.key(k)] = v
        else:
            raise PickleProblem(f"items are put into a {type(target).__name__}")

    def extend(self, target: object, values: list[object]) -> None:
        """Append values to a list or set."""
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, set):
            target.update(self.key(v) for v in values)
        elif isinstance(target, Made):
            target.items.extend(values)
        else:
            raise PickleProblem(f"items are appended to a {type(target).__name__}")

    def call(self, what: object, args: object) -> object:
        """What a call by the pickle becomes: a plain value for the harmless builders, else an inert stand-in."""
        args = args if isinstance(args, tuple) else (args,)
        if not isinstance(what, Named):
            return Made(what, args)
        name, first = str(what), args[0] if args else None
        if name in ("collections.OrderedDict", "builtins.dict", "collections.defaultdict", "collections.Counter"):
            return self.mapping(args[-1] if args else None)
        if name in ("builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset", "collections.deque", "torch.Size"):
            return self.sequence(what.name, first)
        if name == "_codecs.encode" and isinstance(first, str):
            self.charge(len(first))
            return first.encode("latin-1", "replace") if args[1:] == ("latin1",) else first.encode("utf-8", "surrogatepass")
        if name in ("builtins.bytes", "builtins.bytearray") and (not args or isinstance(first, (bytes, str))):
            self.charge(len(first) if isinstance(first, (bytes, str)) else 0)
            return first.encode("latin-1", "replace") if isinstance(first, str) else first or b""
        if what.module in _NUMPY and what.name == "_reconstruct":
            return Array()
        if what.module in _NUMPY and what.name == "scalar" and len(args) == 2:
            return Array((), _dtype_text(args[0]), False, _bytes(args[1]))
        if what.module in _NUMPY and what.name == "_frombuffer" and len(args) == 4:
            return Array(_integers(args[2]), _dtype_text(args[1]), args[3] == "F", _bytes(args[0]))
        if name == "builtins.complex" and len(args) == 2 and all(isinstance(a, float) for a in args):
            return complex(*args)
        if name == "copyreg._reconstructor" and args:
            return Made(first, args[2:] if args[2:] != (None,) else ())
        return Made(what, args)

    def mapping(self, value: object) -> dict[object, object]:
        """The dictionary that a call with pairs would build."""
        out: dict[object, object] = {}
        if isinstance(value, dict):
            self.charge(len(value))
            out.update(value)
        elif isinstance(value, (list, tuple)):
            self.charge(len(value))
            for pair in value:
                if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                    raise PickleProblem("a dictionary is built from something that is not pairs")
                out[self.key(pair[0])] = pair[1]
        return out

    def sequence(self, kind: str, value: object) -> object:
        """The list, tuple or set that a call would build."""
        values: list[object] = list(value) if isinstance(value, (list, tuple, set, frozenset, dict)) else []
        self.charge(len(values))
        if kind in ("set", "frozenset"):
            unique = {self.key(v) for v in values}
            return frozenset(unique) if kind == "frozenset" else unique
        return tuple(values) if kind in ("tuple", "Size") else values

    def build(self, target: object, state: object) -> None:
        """Set the state of an instance; arrays take their header and bytes from it."""
        if isinstance(target, Array):
            if not isinstance(state, tuple) or len(state) != 5:
                raise PickleProblem("an array with an unknown state")
            target.shape, target.dtype, target.fortran = _integers(state[1]), _dtype_text(state[2]), bool(state[3])
            target.data = b"" if isinstance(state[4], list) else _bytes(state[4])
            if isinstance(state[4], list):
                target.dtype = "O"
        elif isinstance(target, Made):
            parts = state if isinstance(state, tuple) and len(state) == 2 and all(p is None or isinstance(p, dict) for p in state) else (state,)
            for part in parts:
                if isinstance(part, dict):
                    self.charge(len(part))
                    target.state.update(part)
                elif part is not None:
                    target.extra = part
        # plain containers with a state of their own (subclasses of dict) keep only their items

    def run(self) -> object:
        """Read to the STOP opcode; `position` is then the byte behind it."""
        table, data, budget = _TABLE, self.data, self.limits.opcodes
        size = len(data)
        while self.position < size:
            code = data[self.position]
            self.position += 1
            if code == 0x2E:
                return self.pop()
            step = table[code]
            budget -= 1
            if step is None:
                raise PickleProblem(f"unknown opcode 0x{code:02x} at byte {self.position - 1}")
            if budget < 0:
                raise PickleProblem(f"the pickle runs for more than {self.limits.opcodes} opcodes")
            try:
                step(self)
            except (ValueError, UnicodeError, struct.error, TypeError, OverflowError) as x:
                raise PickleProblem(f"byte {self.position}: {x}") from x
        raise PickleProblem("the pickle ends before its STOP")


# ---- opcodes: each takes the machine, in the order of the format's description in Python's pickletools

_Step = Callable[[Machine], None]
_TABLE: list[_Step | None] = [None] * 256


def _op(code: bytes) -> Callable[[_Step], _Step]:
    def put(step: _Step) -> _Step:
        _TABLE[code[0]] = step
        return step

    return put


def _push(code: bytes, value: Callable[[Machine], object]) -> None:
    _TABLE[code[0]] = lambda m: m.stack.append(value(m))


def _text_integer(m: Machine) -> object:
    raw = m.line()
    if raw in (b"00", b"01"):
        return raw == b"01"
    return int(raw.rstrip(b"L"))


def _quoted(m: Machine) -> object:
    raw = m.line()
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise PickleProblem("a quoted text without its quotes")
    return raw[1:-1].decode("unicode_escape")


def _named(module: str, name: str) -> Named:
    return Named(_OLD_MODULES.get(module, module), name)


_push(b"I", _text_integer)
_push(b"L", _text_integer)
_push(b"J", lambda m: m.number(_I32))
_push(b"K", lambda m: m.byte())
_push(b"M", lambda m: m.number(_U16))
_push(b"\x8a", lambda m: int.from_bytes(m.take(m.byte()), "little", signed=True))
_push(b"\x8b", lambda m: int.from_bytes(m.take(m.number(_I32)), "little", signed=True))
_push(b"S", _quoted)
_push(b"T", lambda m: m.take(m.number(_I32)).decode("latin-1"))
_push(b"U", lambda m: m.take(m.byte()).decode("latin-1"))
_push(b"B", lambda m: m.take(m.number(_U32)))
_push(b"C", lambda m: m.take(m.byte()))
_push(b"\x8e", lambda m: m.take(m.number(_U64)))
_push(b"\x96", lambda m: m.take(m.number(_U64)))
_push(b"N", lambda m: None)
_push(b"\x88", lambda m: True)
_push(b"\x89", lambda m: False)
_push(b"V", lambda m: m.line().decode("raw-unicode-escape"))
_push(b"\x8c", lambda m: m.text(m.byte()))
_push(b"X", lambda m: m.text(m.number(_U32)))
_push(b"\x8d", lambda m: m.text(m.number(_U64)))
_push(b"F", lambda m: float(m.line()))
_push(b"G", lambda m: struct.unpack(">d", m.take(8))[0])
_push(b"]", lambda m: [])
_push(b")", lambda m: ())
_push(b"}", lambda m: {})
_push(b"\x8f", lambda m: set())
_push(b"l", lambda m: m.since_mark())
_push(b"t", lambda m: tuple(m.since_mark()))
_push(b"\x85", lambda m: (m.pop(),))
_push(b"\x86", lambda m: (m.pop(), m.pop())[::-1])
_push(b"\x87", lambda m: (m.pop(), m.pop(), m.pop())[::-1])
_push(b"c", lambda m: _named(m.line().decode(), m.line().decode()))
_push(b"P", lambda m: m.persistent(m.line().decode("ascii", "replace")))
_push(b"Q", lambda m: m.persistent(m.pop()))
_push(b"2", lambda m: m.top())


@_op(b"(")
def _mark(m: Machine) -> None:
    m.marks += 1
    if m.marks > m.limits.marks:
        raise PickleProblem(f"the pickle nests deeper than {m.limits.marks} marks")
    m.stack.append(_MARK)


@_op(b"0")
def _pop(m: Machine) -> None:
    if m.stack and m.stack[-1] is _MARK:
        m.marks -= 1
        m.stack.pop()
    else:
        m.pop()


@_op(b"1")
def _pop_mark(m: Machine) -> None:
    m.since_mark()


@_op(b"a")
def _append(m: Machine) -> None:
    value = m.pop()
    m.extend(m.top(), [value])


@_op(b"e")
def _appends(m: Machine) -> None:
    values = m.since_mark()
    m.extend(m.top(), values)


@_op(b"\x90")
def _add_items(m: Machine) -> None:
    values = m.since_mark()
    m.extend(m.top(), values)


@_op(b"\x91")
def _frozen(m: Machine) -> None:
    m.stack.append(frozenset(m.key(v) for v in m.since_mark()))


@_op(b"d")
def _dict(m: Machine) -> None:
    out: dict[object, object] = {}
    m.fill(out, m.since_mark())
    m.stack.append(out)


@_op(b"s")
def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.fill(m.top(), [key, value])


@_op(b"u")
def _set_items(m: Machine) -> None:
    pairs = m.since_mark()
    m.fill(m.top(), pairs)


def _put(m: Machine, index: int) -> None:
    m.memo[index] = m.top()


def _get(m: Machine, index: int) -> None:
    if index not in m.memo:
        raise PickleProblem(f"the pickle refers to value {index}, which it never stored")
    m.stack.append(m.memo[index])


_TABLE[ord("p")] = lambda m: _put(m, int(m.line()))
_TABLE[ord("q")] = lambda m: _put(m, m.byte())
_TABLE[ord("r")] = lambda m: _put(m, m.number(_U32))
_TABLE[0x94] = lambda m: _put(m, len(m.memo))
_TABLE[ord("g")] = lambda m: _get(m, int(m.line()))
_TABLE[ord("h")] = lambda m: _get(m, m.byte())
_TABLE[ord("j")] = lambda m: _get(m, m.number(_U32))


@_op(b"\x80")
def _protocol(m: Machine) -> None:
    version = m.byte()
    if version > 5:
        raise PickleProblem(f"pickle protocol {version} is not known")


@_op(b"\x95")
def _frame(m: Machine) -> None:
    m.take(8)  # the frame's length only helps readers of slow files


@_op(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise PickleProblem("a class name that is not text")
    m.stack.append(_named(module, name))


@_op(b"R")
def _reduce(m: Machine) -> None:
    args = m.pop()
    m.stack.append(m.call(m.pop(), args))


@_op(b"\x81")
def _new(m: Machine) -> None:
    args = m.pop()
    m.stack.append(m.call(m.pop(), args))


@_op(b"\x92")
def _new_keywords(m: Machine) -> None:
    keywords, args, what = m.pop(), m.pop(), m.pop()
    made = Made(what, args if isinstance(args, tuple) else (args,))
    if isinstance(keywords, dict):
        made.state.update(keywords)
    m.stack.append(made)


@_op(b"i")
def _instance(m: Machine) -> None:
    what = _named(m.line().decode(), m.line().decode())
    m.stack.append(m.call(what, tuple(m.since_mark())))


@_op(b"o")
def _object(m: Machine) -> None:
    values = m.since_mark()
    if not values:
        raise PickleProblem("an instance without a class")
    m.stack.append(m.call(values[0], tuple(values[1:])))


@_op(b"b")
def _build(m: Machine) -> None:
    state = m.pop()
    m.build(m.top(), state)
