"""Scoring with a model; a tiny decoder with random weights, made here."""

from pathlib import Path

import numpy as np
import pytest

from forensics.errors import ConfigError, StoreError

torch = pytest.importorskip("torch", reason="scoring needs the extra `model`")
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def segments(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = np.array([1, 7, 30, 64, 12, 0, 2, 150, 5])
    return rng.integers(0, 97, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])


def alone(scorer, ids: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    with torch.inference_mode():
        x = torch.from_numpy(ids.astype(np.int64))[None]
        logits = scorer.model(input_ids=x).logits[0, :-1].float()
        return torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="none").numpy()


def test_a_packed_segment_scores_as_if_it_stood_alone(folder: Path) -> None:
    from forensics.losses.reference import open_scorer, score_segments

    scorer = open_scorer(folder, batch_tokens=200)
    tokens, offsets = segments()
    got = score_segments(scorer, tokens, offsets)
    for n, values in enumerate(got):
        ids = tokens[offsets[n] : offsets[n + 1]]
        want = [alone(scorer, ids[a : a + 64]) for a in range(0, len(ids), 64) if len(ids[a : a + 64]) > 1]
        np.testing.assert_allclose(values, np.concatenate(want) if want else [], atol=1e-4)


def test_a_row_without_masks_differs_and_equals_the_plain_forward(folder: Path) -> None:
    from forensics.losses.reference import open_scorer, score_rows, score_segments

    scorer = open_scorer(folder)
    rows = np.random.default_rng(1).integers(0, 97, (3, 48))
    got = score_rows(scorer, rows)
    np.testing.assert_allclose(got[1], alone(scorer, rows[1]), atol=1e-4)
    parts = score_segments(scorer, rows[1], np.array([0, 24, 48]))
    assert np.abs(parts[1] - got[1, 24:]).max() > 0.01


def test_lack_of_memory_halves_the_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forensics.losses.reference import Scorer, open_scorer, score_segments

    scorer = open_scorer(folder, batch_tokens=1000)
    tokens, offsets = segments()
    want = score_segments(open_scorer(folder), tokens, offsets)
    whole = Scorer.token_losses

    def limited(self, rows, positions, blocks):  # type: ignore[no-untyped-def]
        if len(rows) > 1:
            raise RuntimeError("CUDA out of memory")
        return whole(self, rows, positions, blocks)

    monkeypatch.setattr(Scorer, "token_losses", limited)
    got = score_segments(scorer, tokens, offsets)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert scorer.batch_tokens < 1000


def test_what_cannot_be_scored_is_refused(folder: Path, tmp_path: Path) -> None:
    from forensics.losses.reference import open_scorer, score_rows, score_segments

    scorer = open_scorer(folder)
    with pytest.raises(ConfigError, match="knows 97 ids"):
        score_segments(scorer, np.array([1, 500]), np.array([0, 2]))
    with pytest.raises(ConfigError, match="context of 64"):
        score_rows(scorer, np.zeros((1, 200), np.int64))
    with pytest.raises(StoreError, match="does not exist"):
        open_scorer(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StoreError, match="does not load"):
        open_scorer(tmp_path)
