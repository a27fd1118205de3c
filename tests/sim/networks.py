"""Networks that several tests use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dlbctl.core.curve import Curve
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.service import Service


def one_place(services: Mapping[str, Service], demand_rps: float, *, servers: float = 1.0) -> Network:
    """Cells side by side, all at no distance from one source."""
    cells = tuple(Cell(name, servers, service) for name, service in services.items())
    return Network(cells, {"here": demand_rps}, {("here", name): 0.0 for name in services})


def scattered(
    seed: int, *, cells: int = 4, load: float = 0.8, speed: float = 1.0, sources: int | None = None
) -> Network:
    """Unequal cells strewn over a plane, a source at each of the first of them; speed divides the service times."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(cells):
        a, rho, c = 0.8 / speed * np.exp(0.2 * rng.normal()), rng.uniform(0.1, 0.6), rng.uniform(4.0, 9.0)
        curve = Curve(float(a), float((1.0 - rho) * a / c), float(c), float(c * rng.uniform(0.1, 0.4)))
        made.append(Cell(f"c{index}", float(max(1, rng.poisson(10))), curve))
    places = rng.uniform(0.0, 0.12, (cells, 2))
    shares = rng.dirichlet(np.ones(sources or cells))
    capacity = sum(cell.capacity_rps for cell in made)
    demand = {f"s{index}": float(share * capacity * load) for index, share in enumerate(shares)}
    distance = {
        (source, cell.name): float(0.0005 + np.hypot(*(places[i] - places[j])))
        for i, source in enumerate(demand)
        for j, cell in enumerate(made)
    }
    return Network(tuple(made), demand, distance)
