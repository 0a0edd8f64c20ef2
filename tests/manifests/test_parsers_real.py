"""Exported text read by the trainers' own parsers. Opt-in: `pytest -m real`.

OLMo-core's configuration classes come with the package ai2-olmo-core. Megatron-LM's parser (`megatron/training`) is in no
wheel: name checkouts by FORENSICS_MEGATRON_LM, separated by colons, each of which is read in a process of its own.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from forensics.loaders.megatron.weights import parse_blend
from forensics.manifests.base import EXPORTERS, Request
from forensics.run import Launch, RunSpec

pytestmark = pytest.mark.real
STEPS = (3, 4, 5, 9, 14)

PARSE = """
import argparse, json, sys
sys.path.insert(0, sys.argv[1])
from megatron.training import arguments
parser = argparse.ArgumentParser(allow_abbrev=False)
arguments.add_megatron_arguments(parser)
args, rest = parser.parse_known_args(sys.argv[3:])
assert not rest, rest
from megatron.core import package_info
from megatron.core.datasets.utils import get_blend_from_list
out = {"version": package_info.__version__, "skip": args.iterations_to_skip, "blend": get_blend_from_list(args.data_path)}
open(sys.argv[2], "w").write(json.dumps(out))
"""


def checkouts() -> list[Path]:
    return [Path(p) for p in os.environ.get("FORENSICS_MEGATRON_LM", "").split(":") if p]


def parsed(checkout: Path, out: Path, *words: str) -> dict:
    """What the checkout's argparse makes of the words, and its version."""
    done = subprocess.run([sys.executable, "-c", PARSE, str(checkout), str(out), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def dropped(checkout: Path, listed: list[int]) -> list[int]:
    """Logged steps that the checkout's training loop drops: its own condition, evaluated for every count of finished steps."""
    tree = ast.parse((checkout / "megatron" / "training" / "training.py").read_text())
    tests = [n for n in ast.walk(tree) if isinstance(n, ast.Compare) and ast.unparse(n.comparators[0]) == "args.iterations_to_skip"]
    (condition,) = {ast.unparse(n) for n in tests if isinstance(n.ops[0], ast.In)}
    args = type("Args", (), {"iterations_to_skip": listed})
    return [finished + 1 for finished in range(40) if eval(condition, {"iteration": finished, "args": args})]


@pytest.mark.parametrize("checkout", checkouts() or [None], ids=lambda p: p.name if p else "none")
def test_megatron_reads_the_flag_and_drops_exactly_these_steps(checkout, tmp_path) -> None:
    if checkout is None:
        pytest.skip("name a Megatron-LM checkout: FORENSICS_MEGATRON_LM")
    version = parsed(checkout, tmp_path / "out.json")["version"]
    launch = Launch(0, version=version, args={"global_batch_size": 8})
    exporter = EXPORTERS.get("megatron")
    manifest = exporter.export(Request(RunSpec("run", "megatron", Path(), (launch,), version), launch, STEPS))
    got = parsed(checkout, tmp_path / "out.json", *manifest.files["megatron.txt"].split())["skip"]
    assert dropped(checkout, got) == list(STEPS)


BLENDS = [["a", "b"], ["0.3", "a", "0.7", "b"], ["1", "a"], ["a", "b", "c"], ["1e-2", "x/1", "2", "y/2"], ["a", "0.5", "b", "c"], ["a"]]


@pytest.mark.parametrize("blend", BLENDS, ids=" ".join)
@pytest.mark.parametrize("checkout", checkouts() or [None], ids=lambda p: p.name if p else "none")
def test_megatron_reads_a_blend_as_we_do(checkout, blend, tmp_path) -> None:
    if checkout is None:
        pytest.skip("name a Megatron-LM checkout: FORENSICS_MEGATRON_LM")
    prefixes, weights = parsed(checkout, tmp_path / "out.json", "--data-path", *blend)["blend"]
    ours = parse_blend(blend)
    assert (list(ours.prefixes), None if ours.weights is None else list(ours.weights)) == (prefixes, weights)


def test_olmo_core_reads_the_list_and_drops_exactly_these_steps(runs_of_olmo_core) -> None:
    trainer = pytest.importorskip("olmo_core.train", exc_type=ImportError)
    from olmo_core.config import Config
    from olmo_core.train.common import StepSkipRange

    manifest = runs_of_olmo_core
    listed = yaml.safe_load(manifest.files["olmo-core.yaml"])["trainer"]["steps_to_skip"]
    base = {"save_folder": "/tmp/x"}
    config = trainer.TrainerConfig.from_dict({**base, "steps_to_skip": listed})
    typed = trainer.TrainerConfig(**base).merge([manifest.flags.removeprefix("--trainer.").replace("'", "")])
    called = eval(manifest.files["olmo-core.py.txt"].split("=", 1)[1], {"StepSkipRange": StepSkipRange})
    assert isinstance(config, Config)
    for ranges in (config.steps_to_skip, typed.steps_to_skip, called):
        ranges = [StepSkipRange(**r) if isinstance(r, dict) else r for r in ranges]
        assert [s for s in range(40) if any(r.start <= s < r.stop for r in ranges)] == list(STEPS)


@pytest.fixture
def runs_of_olmo_core(olmo_core, asked):
    return EXPORTERS.get("olmo-core").export(asked(olmo_core, list(STEPS)))
