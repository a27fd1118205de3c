"""NETWORK.toml: what it may say, and one clear message for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.errors import ConfigError
from dlbctl.sim.equilibrium import optimum, price_of_anarchy
from dlbctl.sim.network_file import example_network, load_network
from dlbctl.sim.service import Polynomial, Queue

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "simulate"

HERE = '[[cell]]\nname = "a"\nservers = 2\nqueue = { rate = 5 }\n[[source]]\nname = "a"\ndemand = 4\n'


def loaded(folder: Path, text: str) -> object:
    path = folder / "network.toml"
    path.write_text(text)
    return load_network(path)


def test_the_example_file_is_the_built_in_example() -> None:
    file, built_in = load_network(EXAMPLES / "three-regions.toml"), example_network()
    assert (file.cells, file.demand_rps, file.one_way_s) == (built_in.cells, built_in.demand_rps, built_in.one_way_s)
    assert file.one_way_s["us-ashburn", "ap-seoul"] == pytest.approx(0.093)
    assert file.one_way_s["us-ashburn", "us-ashburn"] == pytest.approx(0.0005)


def test_the_other_example_is_pigous() -> None:
    assert price_of_anarchy(load_network(EXAMPLES / "pigou.toml")) == pytest.approx(4.0 / 3.0, rel=1e-5)


def test_every_law_of_service_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(
        '[[cell]]\nname = "a"\ncurve = { a = 0.8, b = 0.08, c = 8, s = 2 }\n'
        '[[cell]]\nname = "b"\nqueue = { rate = 5 }\n[[cell]]\nname = "c"\nlink = { idle_s = 1, factor = 0.5 }\n'
        '[[source]]\nname = "s"\ndemand = 4\ncells = ["a", "c"]\n[delay_ms]\ns = { a = 10, c = 20 }\n'
    )
    network = load_network(path)
    assert [cell.service for cell in network.cells] == [Curve(0.8, 0.08, 8.0, 2.0), Queue(5.0), Polynomial(1.0, 0.5)]
    assert network.one_way_s == {("s", "a"): 0.01, ("s", "c"): 0.02}
    assert optimum(network).shares[0, 1] == 0.0


def test_the_way_back_takes_as_long() -> None:
    network = load_network(EXAMPLES / "three-regions.toml")
    assert network.one_way_s["ap-seoul", "us-ashburn"] == network.one_way_s["us-ashburn", "ap-seoul"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HERE.replace("demand = 4", "demand = 10"), "unstable: 'a' asks for 10 requests/s"),
        (HERE.replace("demand = 4", "demand = 0"), "source[0].demand: Expected `float` > 0.0"),
        (HERE + 'cells = ["b"]\n', "source[0].cells: no [[cell]] is called 'b'"),
        (HERE + "cells = []\n", "source[0].cells: 'a' may use no cell"),
        (HERE + '[[source]]\nname = "a"\ndemand = 1\n', "source[1].name: 'a' appears twice"),
        (HERE + '[[cell]]\nname = "a"\nqueue = { rate = 5 }\n', "cell 'a' appears twice"),
        (HERE + '[[source]]\nname = "b"\ndemand = 1\n', "no delay is known from 'b' to 'a'"),
        (HERE + "[delay_ms.a]\na = -1\n", "delay_ms.a.a: -1 is not from 0 to 60000"),
        (HERE + "[delay_ms.x]\na = 1\n", "delay_ms.x: no [[source]] or [[cell]] is called 'x'"),
        (HERE.replace("queue = { rate = 5 }\n", ""), "cell[0]: cell 'a' needs one of `curve`, `queue` and `link`"),
        (HERE.replace("queue", "link = {}\nqueue"), "cell[0]: cell 'a' needs one of `curve`, `queue` and `link`"),
        (HERE.replace("queue = { rate = 5 }", "curve = { a = 1, b = 1, c = 1, s = 1 }"), "cell[0]: curve: 1 - b c / a"),
        (HERE.replace("queue = { rate", "queue = { rat"), "unknown key cell[0].queue.rat"),
        ("", "cell is missing"),
        ("[[", "not valid TOML"),
    ],
)
def test_it_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'network.toml'}: ")
    assert message in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load_network(tmp_path / "none.toml")
