import pytest
import yaml

from forensics.errors import ConfigError
from forensics.manifests.base import EXPORTERS
from forensics.manifests.megatron_bridge import shift_of

BRIDGE = EXPORTERS.get("megatron-bridge")


@pytest.mark.parametrize(
    ("target", "value"), [("2026-04-05", 41199), ("2026-04-06", 41200), ("2025-11-01", 41199), ("0.3.1", 41199), ("0.6.0", 41200), ("0.7.0", 41200)]
)
def test_values_follow_the_date_or_release(target, value, olmo, asked) -> None:
    manifest = BRIDGE.export(asked(olmo, [41200], target=target))
    assert yaml.safe_load(manifest.files["megatron-bridge.yaml"]) == {"train": {"iterations_to_skip": [value]}}
    assert manifest.flags == f"train.iterations_to_skip=[{value}]"


@pytest.mark.parametrize("target", [None, "0.4.0", "0.5.1", "main", "2026-13-40"])
def test_what_does_not_decide_the_numbering_is_asked_for(target, olmo, asked) -> None:
    with pytest.raises(ConfigError) as caught:
        BRIDGE.export(asked(olmo, [41200], target=target))
    assert "--version" in str(caught.value.hint)


def test_the_version_of_megatron_core_does_not_stand_in_for_that_of_bridge() -> None:
    with pytest.raises(ConfigError, match="that of megatron-core"):
        shift_of(None)


def test_text_of_one_numbering_under_the_other_drops_the_neighbour(olmo, asked) -> None:
    import dataclasses

    wanted = asked(olmo, [41200, 41201], target="2026-01-01")
    manifest = BRIDGE.export(wanted)
    assert BRIDGE.parse(dataclasses.replace(manifest, version="2026-06-01"), wanted) == [41199, 41200]
