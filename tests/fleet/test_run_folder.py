"""What a fleet's record says to the other commands."""

from __future__ import annotations

from dlbctl.commands.admin_client import addresses
from dlbctl.fleet.run_folder import FleetRecord, RegionRecord
from dlbctl.replay.targets import parse_targets


def region(name: str, demand: float) -> RegionRecord:
    url, admin = f"http://127.0.0.1:{len(name)}", f"unix:/run/{name}.sock"
    return RegionRecord(name=name, url=url, demand=demand, root_admin=admin, leaf="", leaf_admin="", engines=())


def test_the_roots_are_written_as_inspect_and_replay_read_them() -> None:
    regions = (region("us", 2.5), region("eu-1", 1.0), region("no-clients", 0.0))
    record = FleetRecord(pid=1, directory="", model="m", relay_control="", regions=regions, links=(), pids={})
    assert addresses(record.admin) == ["unix:/run/us.sock", "unix:/run/eu-1.sock", "unix:/run/no-clients.sock"]
    # A weight of nothing is none that replay takes: who has no clients is no target.
    targets = parse_targets([record.target])
    assert [(target.name, target.url, target.weight) for target in targets] == [
        ("us", "http://127.0.0.1:2", 2.5),
        ("eu-1", "http://127.0.0.1:4", 1.0),
    ]
