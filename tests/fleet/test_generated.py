"""Merging a FLEET.toml's override over generated files, and the files' way through TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dlbctl.fleet.generated import merged, relay_tables, root_tables, write_toml
from dlbctl.fleet.settings import FleetSettings, Override, Region

SETTINGS = FleetSettings(
    region=(Region(name="us-east-1"), Region(name="eu-west-1")),
    delay_ms={"us-east-1": {"eu-west-1": 50.0}, "eu-west-1": {"us-east-1": 30.0}},
    override=Override(root={"root": {"drain_s": 9.0}, "endpoint": [{"name": "qwen3-35b", "policy": "mnlb"}]}),
)
LEAVES = {"us-east-1": "http://127.0.0.1:1001", "eu-west-1": "http://127.0.0.1:1002"}


def test_tables_merge_key_by_key_and_named_entries_by_name() -> None:
    base = {"root": {"cell": "a", "drain_s": 3}, "cell": [{"name": "a", "leaves": ["x"]}], "list": [1]}
    over = {"root": {"drain_s": 9}, "cell": [{"name": "a", "tags": ["us"]}, {"name": "b"}], "list": [2], "new": {}}
    assert merged(base, over) == {
        "root": {"cell": "a", "drain_s": 9},
        "cell": [{"name": "a", "leaves": ["x"], "tags": ["us"]}, {"name": "b"}],
        "list": [2],
        "new": {},
    }
    assert base["root"] == {"cell": "a", "drain_s": 3}


def test_an_override_reaches_the_root_file_and_the_rest_stays(tmp_path: Path) -> None:
    tables = root_tables(SETTINGS, SETTINGS.region[0], LEAVES, "unix:/tmp/r.sock")
    write_toml(tmp_path / "root.toml", tables)
    assert tomllib.loads((tmp_path / "root.toml").read_text()) == tables
    assert tables["root"]["drain_s"] == 9
    assert tables["root"]["cell"] == "us-east-1"
    assert tables["endpoint"] == [{"name": "qwen3-35b", "policy": "mnlb"}]


def test_a_link_goes_each_way_with_its_own_delay_there_and_back() -> None:
    links = relay_tables(SETTINGS, LEAVES)["link"]
    assert [(link["source"], link["target"], link["delay_ms"], link["back_ms"]) for link in links] == [
        ("us-east-1", "127.0.0.1:1002", 50, 30),
        ("eu-west-1", "127.0.0.1:1001", 30, 50),
    ]
