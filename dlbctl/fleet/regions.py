"""How far apart cloud regions are: one-way network delays in milliseconds.

Owns the table that `dlbctl up` builds its WAN from. The figures are a public table of median round-trip times
between 14 AWS regions, halved: what packets take, without a client's access path or a server's work.
"""

from __future__ import annotations

from collections.abc import Mapping

WITHIN_REGION_MS = 0.5
# No delay that anybody gives is longer.
MOST_MS = 60_000.0

_REGIONS = (
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ca-central-1",
    "eu-central-1",
    "eu-west-1",
    "eu-west-2",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
)

# Row i holds the delays from region i to the regions after it.
_UPPER_TRIANGLE_MS = (
    (19, 66, 36, 53, 79, 116, 103, 108, 131, 76, 70, 56, 51),
    (67, 37, 77, 93, 117, 121, 126, 149, 93, 86, 70, 65),
    (33, 78, 95, 62, 63, 58, 150, 95, 100, 118, 112),
    (48, 115, 82, 88, 84, 165, 109, 103, 88, 83),
    (100, 127, 129, 133, 157, 101, 94, 70, 71),
    (48, 36, 41, 64, 10, 15, 41, 32),
    (12, 9, 103, 48, 52, 78, 73),
    (8, 90, 36, 41, 67, 61),
    (95, 40, 45, 75, 66),
    (58, 63, 88, 89),
    (10, 35, 34),
    (29, 27),
    (12,),
)

# GORGO ran in three OCI regions. Each shares its metropolitan area with an AWS region, whose row it uses.
# The paper's own RTTs (37, 279 and 457 ms from Ashburn) contain the access path and the proxy: 37 ms is from
# Ashburn to itself, so they are no network delays.
_SAME_METRO = {
    "us-ashburn": "us-east-1",
    "eu-frankfurt": "eu-central-1",
    "ap-seoul": "ap-northeast-2",
}


def cloud_regions() -> tuple[str, ...]:
    """The regions of the table itself, each once."""
    return _REGIONS


def known_regions() -> tuple[str, ...]:
    """Every region name that `one_way_ms` answers for."""
    return (*_REGIONS, *_SAME_METRO)


def one_way_ms(source: str, destination: str) -> float | None:
    """Return the network delay from one region to another in ms, None where either is not in the table."""
    places = [_place(source), _place(destination)]
    if None in places:
        return None
    low, high = sorted(place for place in places if place is not None)
    return WITHIN_REGION_MS if low == high else float(_UPPER_TRIANGLE_MS[low][high - low - 1])


def between_ms(given: Mapping[str, Mapping[str, float]], source: str, destination: str) -> float | None:
    """Return the delay that a file gives, its reverse's where it gives only that, or else the table's."""
    own = given.get(source, {}).get(destination)
    reverse = given.get(destination, {}).get(source)
    if own is None and reverse is None:
        return one_way_ms(source, destination)
    return reverse if own is None else own


def _place(region: str) -> int | None:
    name = _SAME_METRO.get(region, region)
    return _REGIONS.index(name) if name in _REGIONS else None
