"""FLEET.toml: defaults, delays, and errors that name the file, the key and the nearest valid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbctl.core.errors import ConfigError
from dlbctl.fleet.settings import FleetSettings, default_fleet, load_fleet

TWO = '[[region]]\nname = "us-east-1"\n[[region]]\nname = "us-west-2"\n'
EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"


def fleet(folder: Path, text: str) -> FleetSettings:
    path = folder / "fleet.toml"
    path.write_text(text)
    return load_fleet(path)


def test_one_named_region_is_a_fleet(tmp_path: Path) -> None:
    settings = fleet(tmp_path, '[[region]]\nname = "us-ashburn"\n')
    assert settings.model == "qwen3-35b"
    assert settings.policy == "auto/auto"
    assert settings.region[0].engines == 4


def test_a_region_overrides_the_time_factor_of_the_fleet(tmp_path: Path) -> None:
    settings = fleet(tmp_path, "time_factor = 0.5\n" + TWO + "time_factor = 2\n")
    assert [settings.time_factor_of(region) for region in settings.region] == [0.5, 2.0]


def test_delays_come_from_the_table_the_file_or_its_reverse(tmp_path: Path) -> None:
    assert fleet(tmp_path, TWO).one_way_ms("us-east-1", "us-west-2") == 34
    one = fleet(tmp_path, TWO + "[delay_ms.us-east-1]\nus-west-2 = 40\n")
    assert one.one_way_ms("us-east-1", "us-west-2") == 40
    assert one.one_way_ms("us-west-2", "us-east-1") == 40
    both = fleet(tmp_path, TWO + "[delay_ms]\nus-east-1 = {us-west-2 = 40}\nus-west-2 = {us-east-1 = 7}\n")
    assert both.one_way_ms("us-east-1", "us-west-2") == 40
    assert both.one_way_ms("us-west-2", "us-east-1") == 7


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[[region]]\nname = "a"\nenginess = 3\n', "unknown key region[0].enginess", "mean engines?"),
        (TWO + 'polcy = "x"\n', "unknown key region[1].polcy", "known keys: name, engines, profile"),
        ('polcy = "x"\n' + TWO, "fleet.toml: unknown key polcy", "mean policy?"),
        (TWO + "[override.roots]\n", "unknown key override.roots", "mean root?"),
        ('[[region]]\nname = "a"\nengines = 0\n', "region[0].engines: Expected `int` >= 1", ""),
        ('[[region]]\nname = "a"\nengines = "4"\n', "region[0].engines: Expected `int`, got `str`", ""),
        ('[[region]]\nname = "../a"\n', "region[0].name: '../a' is not a name for a region", "Write small letters"),
        ('[[region]]\nname = "a-"\n', "region[0].name: 'a-' is not a name", "hyphens"),
        (f'[[region]]\nname = "{"a" * 41}"\n', "is not a name for a region", "at most 40"),
        ('model = "m"\n', "region is missing", ""),
        ("region = []\n", "region: Expected", ""),
        (TWO + TWO, "region[2].name: 'us-east-1' appears twice", ""),
        (TWO.replace("\n[", "\nport=80\n[") + "port=80\n", "region[1].port: 80 is another region's", ""),
        (TWO + "[delay_ms.us-east-1]\nus-west-1 = 4\n", "no [[region]] is called 'us-west-1'", "us-west-2"),
        (TWO + "[delay_ms.us-east-1]\nus-west-2 = -4\n", "delay_ms.us-east-1.us-west-2: -4 is not from 0 to 60000", ""),
        ('[[region]]\nname = "a"\n[[region]]\nname = "b"\n', "no delay is known from", "[delay_ms."),
        ("[[region]\n", "not valid TOML", ""),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fleet(tmp_path, text)
    assert str(tmp_path / "fleet.toml") in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_fleet(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("fleet-*.toml")), ids=lambda path: path.name)
def test_the_examples_load(path: Path) -> None:
    load_fleet(path)


def test_the_default_fleet_is_small_and_has_every_delay() -> None:
    settings = default_fleet()
    assert sum(region.engines for region in settings.region) <= 12
    names = [region.name for region in settings.region]
    assert all(settings.one_way_ms(a, b) for a in names for b in names)
