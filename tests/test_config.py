import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forensics.config import build, overrides, parse_yaml, preset
from forensics.errors import ConfigError, UsageError
from forensics.registry import Registry, load_plugin


class Inner(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    height: float = 1.0


class Outer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    inner: Inner = Inner()
    name: str = ""


def test_overrides_nest_and_are_typed() -> None:
    assert overrides(["a.b=1", "a.c=[x, y]", "d=true"]) == {"a": {"b": 1, "c": ["x", "y"]}, "d": True}
    with pytest.raises(ConfigError, match="no `=`"):
        overrides(["a.b"])


def test_unknown_keys_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `inner.heigth`; did you mean `height`"):
        build(Outer, {"inner": {"heigth": 2}}, "file.yaml")
    with pytest.raises(ConfigError, match=r"file.yaml"):
        build(Outer, {"inner": {"height": "tall"}}, "file.yaml")
    assert build(Outer, {"inner": {"height": 2}}, "x").inner.height == 2.0


def test_yaml_never_constructs() -> None:
    with pytest.raises(ConfigError):
        parse_yaml("!!python/object/apply:os.system ['true']", "x")
    with pytest.raises(ConfigError):
        parse_yaml("a: [", "x")
    with pytest.raises(ConfigError):
        preset("no/such")


def test_a_name_twice_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    registry: Registry[int] = Registry("thing", "forensics.manifests")
    registry.add("alpha", 1, "m1")
    with pytest.raises(ConfigError, match="two modules"):
        registry.add("alpha", 2, "m2")
    with pytest.raises(UsageError, match="did you mean `alpha`"):
        registry.get("alpah")


def test_a_look_up_by_name_imports_the_module_of_that_name_alone() -> None:
    """In a fresh interpreter: a run's loader and reader are found without importing the other trainers."""
    code = (
        "import sys; from pathlib import Path; from forensics.loaders.base import LOADERS, loader_of; from forensics.run import open_run, READERS\n"
        f"loader_of(open_run(Path({str(Path(__file__).parents[1] / 'configs/quickstart')!r})))\n"
        "assert 'streaming' not in READERS and LOADERS.get('hf').name == 'hf'\n"
        "print([m for m in sys.modules if m.startswith('forensics.loaders.') and ('olmo' in m or 'neox' in m or 'recorded' in m)])\n"
        "assert {'olmo', 'neox', 'torchtitan'} <= set(LOADERS.names())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (out.returncode, out.stdout.strip()) == (0, "[]"), out.stderr


@pytest.mark.parametrize(("text", "said"), [("import no_such_module", "ModuleNotFoundError"), ("x = 1\ndef x(:", "line 2"), ("1 / 0", "ZeroDivisionError")])
def test_a_plugin_that_does_not_import_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=r"mine\.py") as caught:
        load_plugin(tmp_path / "mine.py")
    assert said in caught.value.text()


def test_a_key_given_twice_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"`seed` is given twice.*line 3"):
        parse_yaml("args:\n  seed: 1\n  seed: 2\n", "run.yaml")
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}\n", "run.yaml")["c"] == {"b": 1, "d": 2}
