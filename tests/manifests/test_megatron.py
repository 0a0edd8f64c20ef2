from pathlib import Path

import pytest

from forensics.errors import ConfigError, ForensicsError
from forensics.manifests.base import EXPORTERS, Request, rollback_step, round_trip, steps_in_words
from forensics.run import Launch, RunSpec
from forensics.schemas import CONSUMED, Consumed

EXPORTER = EXPORTERS.get("megatron")


def request(version: str | None, steps: tuple[int, ...], documents: tuple[int, ...] = (), checkpoints: tuple[int, ...] = ()) -> Request:
    launch = Launch(0, version=version, args={"global_batch_size": 8})
    run = RunSpec("run", "megatron", Path(), (launch,), version)
    return Request(run, launch, steps, documents, 1000, 400, checkpoints)


@pytest.mark.parametrize(
    ("version", "values"), [("0.12.3", "41199 41200 41202"), ("0.16.1", "41199 41200 41202"), ("0.17.0", "41200 41201 41203"), ("0.19.2", "41200 41201 41203")]
)
def test_values_follow_the_numbering_of_the_version(version: str, values: str) -> None:
    wanted = request(version, (41200, 41201, 41203))
    manifest = EXPORTER.export(wanted)
    assert manifest.flags == "--iterations-to-skip " + values
    assert EXPORTER.parse(manifest, wanted) == [41200, 41201, 41203]


def test_a_version_that_was_not_read_is_named() -> None:
    manifest = EXPORTER.export(request("0.21.0", (41200,)))
    assert manifest.flags.endswith(" 41200") and manifest.says[0].startswith("unverified: megatron-core 0.21.0")
    assert manifest.terms is not None and manifest.terms.unverified


def test_text_for_one_numbering_read_by_the_other_drops_the_neighbouring_step() -> None:
    old = request("0.16.1", (41200,))
    new = request("0.17.0", (41200,))
    assert EXPORTER.parse(EXPORTER.export(old), old) == [41200]
    assert EXPORTER.export(old).flags != EXPORTER.export(new).flags


@pytest.mark.parametrize("version", ["0.11.0", "0.8.0", "0.4.0"])
def test_versions_without_the_flag_are_refused(version: str) -> None:
    with pytest.raises(ForensicsError, match="no `--iterations-to-skip`"):
        EXPORTER.export(request(version, (5,)))


def test_an_unknown_version_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="needs the megatron-core version"):
        EXPORTER.export(request(None, (5,)))


def test_the_words_name_cost_checkpoint_and_what_must_stay() -> None:
    says = " ".join(EXPORTER.export(request("0.16.1", (41200, 41201), checkpoints=(41000, 41100, 41200))).says)
    assert "41200 to 41201" in says
    assert "1,000 tokens" in says and "400 of them" in says
    assert "checkpoint of step 41100" in says
    assert "lags by 2 steps (16 samples)" in says
    assert "split" in says and "seed" in says


def test_a_checkpoint_of_the_first_guilty_step_has_trained_it() -> None:
    assert rollback_step([100, 200, 300], 300) == 200
    assert rollback_step([100, 200, 300], 301) == 300
    assert rollback_step([100], 100) is None


def test_round_trip_counts_what_falls_out() -> None:
    table = Consumed(CONSUMED.of({"launch": [0] * 4, "step": [1, 2, 2, 3], "sequence": [0, 0, 0, 0], "seq_start": [0, 0, 5, 0],
                                  "doc_key": [7, 7, 8, 7], "doc_start": [0, 10, 0, 20], "doc_stop": [10, 15, 5, 30]}))  # fmt: skip
    wanted = request("0.17.0", (2,), documents=(7,))
    trip = round_trip(EXPORTER.export(wanted), EXPORTER, wanted, table)
    assert (trip.dropped, trip.guilty_tokens, trip.guilty_left, trip.clean_tokens, trip.exact) == ((2,), 5, 20, 5, True)


def test_steps_in_words() -> None:
    assert steps_in_words([]) == "none"
    assert steps_in_words([4, 5, 6, 9]) == "4 to 6 and 9"
    assert steps_in_words(range(0, 40, 2)) == "0 to 38 in 20 pieces"


def test_documents_without_steps_name_the_other_ways() -> None:
    says = " ".join(EXPORTER.export(request("0.16.1", (), documents=(7, 8))).says)
    assert "2 documents" in says and "forensics apply" in says
