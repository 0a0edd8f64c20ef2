"""Checkpoints are read without torch, and a hostile file can neither run anything nor fill the machine."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import StoreError
from forensics.pickles import Machine
from forensics.unpickle import Array, Limits, Made, Named, Tensor, attributes, load, plain

TORCH = Path(__file__).parent / "fixtures" / "torch"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def as_zip(path: Path, stream: bytes, name: str = "anything/data.pkl", **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as box:
        box.writestr(name, stream)
        for key, value in entries.items():
            box.writestr(f"anything/data/{key}", value)
    return path


def array(tree: dict[str, object], key: str) -> np.ndarray:
    value = tree[key]
    assert isinstance(value, (Tensor, Array))
    return value.numpy()


@pytest.mark.parametrize("name", ["new.pt", "legacy.pt"])
def test_torch_files_of_both_ages_give_their_values(name: str) -> None:
    tree = attributes(load(TORCH / name))
    flat = plain(tree)
    assert isinstance(flat, dict)
    assert (flat["step"], flat["loss"], flat["flag"], flat["scalar"]) == (40, 1.5, True, 2.5)
    assert flat["args"] == {"seed": 7, "dtype": "torch.bfloat16", "sig": 15, "path": "a/b", "names": ["x", "y"]}
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    for key, want in (("whole", base), ("column", base[:, 1]), ("turned", base.T), ("half", [0.5, -2.0]), ("small", [1, 2, 3]), ("parameter", [3.0])):
        np.testing.assert_array_equal(array(tree, key), want)
    assert array(tree, "empty").shape == (0, 3)
    assert array(tree, "generator")[:3].tolist() == [5, 0, 0]
    assert array(tree, "array").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array(tree, "fortran").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array(tree, "text").tolist() == ["ab", "c"]


@pytest.mark.parametrize("name", ["new.pt", "legacy.pt"])
def test_a_slice_of_a_larger_file_is_read_like_a_file(name: str, tmp_path: Path) -> None:
    inner = (TORCH / name).read_bytes()
    path = write(tmp_path / "part.distcp", b"x" * 5001 + inner + b"y" * 777)
    tree = attributes(load(path, offset=5001, length=len(inner)))
    assert plain(tree["step"]) == 40
    np.testing.assert_array_equal(array(tree, "whole"), np.arange(12, dtype=np.float32).reshape(3, 4))
    with pytest.raises(StoreError, match="lie outside"):
        load(path, offset=5001, length=len(inner) + 10_000)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_equal_what_pickle_gives(protocol: int, tmp_path: Path) -> None:
    shared = [1, 2]
    value = {
        "n": [0, 255, 256, 65536, -1, 2**31, -(2**40), 2**100, -(2**300)],
        "f": [0.0, -1.5, float("inf")],
        "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "s": ["", "é", "x" * 300, "\udc80"],
        "b": [b"", b"\x00\xff", b"z" * 300],
        "o": [None, True, False],
        "sets": [{1, 2}, frozenset({3})],
        "twice": [shared, shared],
        "ordered": OrderedDict(a=1),
        (1, "k"): 5,
        7: "int key",
    }
    assert load(write(tmp_path / "x.pkl", pickle.dumps(value, protocol))) == value


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40) | st.binary(max_size=40)
TREES = st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=5) | st.tuples(x, x) | st.dictionaries(st.text(max_size=5) | st.integers(), x, max_size=5), max_leaves=30
)


@settings(max_examples=60, deadline=None)
@given(value=TREES, protocol=st.integers(2, 5))
def test_any_tree_of_plain_values_comes_back(value: object, protocol: int) -> None:
    machine = Machine(pickle.dumps([value, value], protocol))
    assert machine.run() == [value, value]
    assert machine.position == len(machine.data)


def test_instances_and_calls_become_inert(tmp_path: Path) -> None:
    class_by_name = b"\x80\x02cno.such.module\nThing\n)\x81}X\x01\x00\x00\x00aK\x05sb."
    made = load(write(tmp_path / "a.pkl", class_by_name))
    assert isinstance(made, Made)
    assert made.what == Named("no.such.module", "Thing")
    assert attributes(made) == {"a": 5}
    assert "no.such.module" not in sys.modules


HARM = {
    "os.system": b"\x80\x02cos\nsystem\nX\x0d\x00\x00\x00touch PWNEDxx\x85R.",
    "posix by stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0dtouch PWNEDxx\x85R.",
    "builtins.exec": b"\x80\x02c__builtin__\nexec\nX\x1c\x00\x00\x00open('PWNEDxx','w').write('')\x85R.",
    "getattr chain": b"\x80\x02c__builtin__\ngetattr\nc__builtin__\ngetattr\ncos\npath\nX\x02\x00\x00\x00os\x86R"
    b"X\x06\x00\x00\x00system\x86RX\x0d\x00\x00\x00touch PWNEDxx\x85R.",
    "instance opcode": b"\x80\x02(X\x0d\x00\x00\x00touch PWNEDxxios\nsystem\n.",
    "object opcode": b"\x80\x02(cos\nsystem\nX\x0d\x00\x00\x00touch PWNEDxxo.",
    "build with a call in it": b"\x80\x02cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00acos\nsystem\nX\x0d\x00\x00\x00touch PWNEDxx\x85Rsb.",
    "setstate": b"\x80\x02cos\nsystem\n}X\x0c\x00\x00\x00__setstate__cos\nsystem\nsb.",
}


@pytest.mark.parametrize("stream", HARM.values(), ids=HARM)
@pytest.mark.parametrize("zipped", [False, True])
def test_nothing_that_a_pickle_names_is_run_or_imported(stream: bytes, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = as_zip(tmp_path / "x.pt", stream) if zipped else write(tmp_path / "x.pt", stream)
    plain(load(path))
    assert not (tmp_path / "PWNEDxx").exists()


def test_a_class_that_could_be_imported_is_not(tmp_path: Path) -> None:
    """`antigravity` opens a browser when imported; any module would do."""
    path = write(tmp_path / "x.pkl", b"\x80\x02cantigravity\nfly\n)R.")
    code = (
        "import sys; from pathlib import Path; from forensics.unpickle import load, plain\n"
        f"plain(load(Path({str(path)!r})))\n"
        "assert 'antigravity' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def bombs() -> dict[str, bytes]:
    doubling = b"\x80\x02]q\x00" + b"".join(b"]q" + bytes([i + 1]) + b"(h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(60)) + b"."
    return {
        "memo index": b"\x80\x02K\x01r\xff\xff\xff\xff0j\xff\xff\xff\xff.",
        "announced text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
        "announced bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
        "announced frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "negative length": b"\x80\x02\x8b" + struct.pack("<i", -5) + b"x.",
        "doubling lists": doubling,
        "deep lists": b"\x80\x02" + b"]" * 80_000 + b"a" * 79_999 + b".",
        "open marks": b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".",
        "deep key": b"\x80\x02}" + b")" + b"\x85" * 80_000 + b"Ns.",
        "doubling key": b"\x80\x02})q\x00" + b"".join(b"0h\x00h\x00\x86q\x00" for _ in range(60)) + b"Ns.",
        "copied text": b"\x80\x02X\x40\x42\x0f\x00" + b"x" * 1_000_000 + b"q\x000(" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 2000 + b"l.",
        "copied lists": b"\x80\x02(" + b"N" * 100_000 + b"lq\x000(" + b"c__builtin__\nlist\nh\x00\x85R" * 2000 + b"l.",
        "many opcodes": b"\x80\x02" + b"N0" * 150_000 + b"N.",
        "no stop": b"\x80\x02]",
        "nothing to take": b"\x80\x02a.",
        "no such value": b"\x80\x02h\x07.",
        "no such opcode": b"\x80\x02\xfe.",
        "extension": b"\x80\x02\x82\x01.",
        "list as a key": b"\x80\x02}]Ns.",
        "protocol": b"\x80\x09N.",
        "huge decimal": b"\x80\x02I" + b"9" * 100_000 + b"\n.",
    }


@pytest.mark.parametrize("stream", bombs().values(), ids=bombs())
def test_bombs_end_soon_and_small(stream: bytes, tmp_path: Path) -> None:
    """Either a clear refusal or a harmless value; never a hang, a crash of the interpreter, or memory out of proportion."""
    path = write(tmp_path / "x.pkl", stream)
    started = time.process_time()
    tracemalloc.start()
    try:
        plain(load(path, limits=Limits(opcodes=200_000, produced=1 << 23)), nodes=20_000)
    except StoreError as x:
        assert "cannot be read" in x.message or "values" in x.message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.process_time() - started < 20
    assert peak < 300 << 20


@pytest.mark.parametrize(
    "name",
    ["announced text", "deep key", "doubling key", "copied text", "copied lists", "many opcodes", "open marks", "list as a key", "no stop", "doubling lists"],
)
def test_bombs_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        plain(load(write(tmp_path / "x.pkl", bombs()[name]), limits=Limits(opcodes=200_000, produced=1 << 23)), nodes=20_000)


def test_a_large_entry_is_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("x/data.pkl", b"\x80\x02" + b"N0" * 4_000_000 + b"N.")
    tracemalloc.start()
    with pytest.raises(StoreError, match="larger than"):
        load(path, limits=Limits(stream=1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_an_archive_with_too_many_entries_is_refused_before_it_is_listed(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as box:
        for i in range(2000):
            box.writestr(f"x/data/{i}", b"")
        box.writestr("x/data.pkl", b"\x80\x02N.")
    with pytest.raises(StoreError, match="announces 2001 entries"):
        load(write(tmp_path / "x.pt", out.getvalue()), limits=Limits(entries=1000))


def rebuild(key: bytes, numel: int, offset: int = 0, size: int = 1, stride: int = 1) -> bytes:
    """A pickle of one tensor over the storage `key`."""
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nLongStorage\nX" + struct.pack("<I", len(key)) + key + b"X\x03\x00\x00\x00cpuJ" + struct.pack("<i", numel) + b"tQ"
    )
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + b"".join(b"J" + struct.pack("<i", n) for n in (offset,))
        + b"J"
        + struct.pack("<i", size)
        + b"\x85J"
        + struct.pack("<i", stride)
        + b"\x85\x89NtR."
    )


def test_a_scalar_is_read_from_its_storage(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "x.pt", rebuild(b"0", 1), **{"0": struct.pack("<q", 41200)})
    assert plain(load(path)) == 41200


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (rebuild(b"1", 1), "lacks the entry"),
        (rebuild(b"../../../../etc/passwd", 1), "lacks the entry"),
        (rebuild(b"0", 1, offset=5), "holds 8 bytes"),
        (rebuild(b"0", 1, offset=-1), "impossible shape"),
        (rebuild(b"0", 1, size=1 << 30), "larger than"),
        (rebuild(b"0", 1, size=1 << 30, stride=0), "larger than"),
        (rebuild(b"0", 1, size=-1), "impossible shape"),
    ],
)
def test_a_tensor_that_lies_about_its_storage_is_refused(stream: bytes, reason: str, tmp_path: Path) -> None:
    tensor = load(as_zip(tmp_path / "x.pt", stream, **{"0": struct.pack("<q", 1)}))
    assert isinstance(tensor, Tensor)
    with pytest.raises(StoreError, match=reason):
        tensor.numpy()


def test_names_in_the_archive_may_be_anything_but_there_is_one_pickle(tmp_path: Path) -> None:
    assert load(as_zip(tmp_path / "a.pt", b"\x80\x02K\x05.", name="../../evil/data.pkl")) == 5
    assert not (tmp_path.parent / "evil").exists()
    with pytest.raises(StoreError, match=r"holds 0 entries called data\.pkl"):
        load(as_zip(tmp_path / "b.pt", b"\x80\x02K\x05.", name="x/other.pkl"))
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as box:
        box.writestr("x/data.pkl", b"\x80\x02K\x05.")
        box.writestr("y/data.pkl", b"\x80\x02K\x06.")
    with pytest.raises(StoreError, match=r"holds 2 entries called data\.pkl"):
        load(tmp_path / "c.pt")


@pytest.mark.parametrize("data", [b"", b"P", b"PK\x03\x04", b"PK\x03\x04" + b"\0" * 100, b"{}", b"\x7fELF", b"\x80"])
def test_what_is_no_checkpoint_is_said_so(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read as a checkpoint"):
        load(write(tmp_path / "x.pt", data))


def test_every_truncation_of_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    for name in ("new.pt", "legacy.pt"):
        whole = (TORCH / name).read_bytes()
        for cut in range(0, len(whole), 97):
            with pytest.raises(StoreError):
                plain(load(write(tmp_path / "x.pt", whole[:cut])))


def test_random_damage_never_escapes_as_another_exception(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(TORCH / "new.pt") as box:
        whole = bytearray(box.read("new/data.pkl"))
    for _ in range(300):
        broken = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            broken[at] = rng.integers(0, 256)
        if broken[:1] != b"\x80":
            continue
        try:
            plain(load(write(tmp_path / "x.pkl", bytes(broken))))
        except StoreError:
            pass


def test_every_opcode_of_the_format_is_known_or_refused_on_purpose() -> None:
    from forensics.pickles import _TABLE

    refused = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
    missing = {op.name for op in pickletools.opcodes if _TABLE[ord(op.code)] is None} - {"STOP"}
    assert missing == refused
