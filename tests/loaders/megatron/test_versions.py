import pytest

from forensics.errors import NotReplayable, RunError
from forensics.loaders.megatron.versions import check_option, parse_version, rules_of, unread
from forensics.loaders.megatron.weights import check_weights, parse_blend, targets


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.16.1", (0, 16)), ("core_v0.12.0", (0, 12)), ("0.17.0rc1", (0, 17)), ("v0.9", (0, 9)), ("megatron-core 0.5.0", (0, 5)), ("0.19.2+cu12", (0, 19)),
    ],
)  # fmt: skip
def test_versions_are_read_however_they_are_written(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["latest", "16", "main", ""])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(RunError, match="no version"):
        rules_of(text)


@pytest.mark.parametrize("text", ["0.4.0", "2.6", "3.0.2", "23.08"])
def test_older_rules_are_out_of_reach(text):
    with pytest.raises(NotReplayable) as caught:
        rules_of(text)
    assert "recorded" in caught.value.hint


def test_the_surplus_rule_changed_with_0_11():
    assert [rules_of(v).surplus for v in ("0.5.0", "0.10.0", "0.11.0", "0.19.0")] == [("once",), ("once",), ("twice",), ("twice",)]
    assert rules_of(None).surplus == ("once", "twice")
    assert targets([0.5, 0.5], 401, "once", 0.005) == ([202, 202], 404)
    assert targets([0.5, 0.5], 401, "twice", 0.005) == ([203, 203], 402)
    assert targets([1.0], 100, "twice", 0.25) == ([125], 100)


def test_a_version_later_than_those_read_is_followed_and_marked():
    assert rules_of("0.21.0rc1").surplus == ("twice",) and rules_of("0.20.0").skipped_step(40) == 40
    assert unread("0.20.0").startswith("unverified: megatron-core 0.20.0") and "verify" in unread("0.20.0")
    assert not unread("0.19.9") and not unread(None) and not unread("0.5.0")


def test_skip_lists_count_finished_steps_up_to_0_16():
    assert rules_of("0.16.1").skipped_step(40) == 41
    assert rules_of("0.17.0").skipped_step(40) == 40
    with pytest.raises(RunError, match="other steps before"):
        rules_of(None).skipped_step(40)


def test_options_that_a_version_does_not_have_are_refused():
    missing = {
        "0.11.0": ("iterations_to_skip", "renormalize_blend_weights"), "0.18.0": ("rampup_batch_size",), "0.17.0": ("step_batch_size_schedule",),
        "0.15.0": ("phase_transition_iterations",),
        "0.8.0": ("decrease_batch_size_if_needed", "renormalize_blend_weights"), "0.12.0": ("mid_level_dataset_surplus",),
    }  # fmt: skip
    for version, name in ((v, n) for v, names in missing.items() for n in names):
        with pytest.raises(RunError, match=name):
            check_option(rules_of(version), name)
        check_option(rules_of(None), name)
    check_option(rules_of("0.12.0"), "iterations_to_skip")
    check_option(rules_of("0.17.0"), "rampup_batch_size")


def test_lists_of_prefixes_with_and_without_weights():
    assert parse_blend(["0.7", "a", "30", "b"]).weights == (0.7, 30.0)
    assert parse_blend(["a", "b"]).prefixes == ("a", "b")
    assert parse_blend(["a", "b"]).weights is None
    assert parse_blend(["1", "a", "b"]).prefixes == ("1", "a", "b")
    assert parse_blend([0.5, "a"]).weights == (0.5,)
    with pytest.raises(RunError, match="empty"):
        parse_blend([])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_must_be_above_zero(weight):
    with pytest.raises(RunError, match="weight .* of b"):
        check_weights([1.0, weight], ["a", "b"])
