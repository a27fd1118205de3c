"""The admin listener: what a running router shows, and the few things an operator may change in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dlbctl import __version__
from dlbctl.core import snapshot
from dlbctl.core.errors import ConfigError
from dlbctl.core.samples import pooled
from dlbctl.core.snapshot import CurveRow, ServerRow
from dlbctl.router.leaf_faults import NO_ANSWER, OTHER_TOKEN
from dlbctl.router.metrics import Metrics
from dlbctl.router.open_requests import open_requests

if TYPE_CHECKING:
    from dlbctl.core.policy import Policy
    from dlbctl.router.router import Router

LEAF_TIMEOUT_S = 2.0
# What a leaf shows to a root that is inspected: asked for by people, so never on the state stream.
INSPECT_PATH = "/dlb/v1/inspect"

_LOG = logging.getLogger(__name__)


class LeafView(msgspec.Struct):
    """A leaf's answer to a root's question."""

    servers: list[ServerRow]
    curves: list[CurveRow]


Part = Annotated[str, msgspec.Meta(min_length=1)]


class Switch(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What PUT /v1/policy/ENDPOINT takes: a whole policy (empty: the configured one), or mechanism, cost or both."""

    policy: str | None = None
    mechanism: Part | None = None
    cost: Part | None = None

    def __post_init__(self) -> None:
        if (self.policy is None) == (self.mechanism is None and self.cost is None):
            raise ValueError("give either policy, or mechanism and/or cost")

    def applied_to(self, policy: Policy) -> str:
        """The policy wanted, in place of the one in force."""
        if self.policy is not None:
            return self.policy
        return f"{self.mechanism or policy.mechanism}/{self.cost or policy.cost}"


def leaf_view(router: Router) -> LeafView:
    """What a leaf shows of itself."""
    now_s = router.clock()
    return LeafView(snapshot.servers(router.tier, now_s), snapshot.curves(router.tier, now_s))


class Admin:
    """The handlers, over one router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._metrics = Metrics(router)

    def __repr__(self) -> str:
        return f"<Admin of {self._router!r}>"

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/info", self.info),
                Route("/v1/cells", self.cells),
                Route("/v1/endpoints", self.endpoints),
                Route("/v1/servers", self.servers),
                Route("/v1/curves", self.curves),
                Route("/v1/requests", self.requests),
                Route("/v1/requests/{id:path}", self.kill, methods=["DELETE"]),
                Route("/v1/policy/{endpoint:path}", self.set_policy, methods=["PUT"]),
                Route("/v1/policy/{endpoint:path}", self.revert_policy, methods=["DELETE"]),
                Route("/metrics", self._metrics.serve),
            ],
            exception_handlers={HTTPException: _not_here},
        )

    async def info(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        """Which router this is."""
        tier = self._router.tier
        return _json(
            {
                "version": __version__,
                "role": tier.role,
                "cell": tier.settings.cell,
                "boot": tier.boot,
                "ready": self._router.routable(),
                "in_flight": len(tier.exchanges),
            }
        )

    async def cells(self, request: Request) -> Response:  # noqa: ARG002
        """A root's cells; a leaf has none."""
        tier = self._router.tier
        rows = snapshot.cells(tier, self._router.clock()) if tier.role == "root" else []
        for row in rows:
            row.why = self._faults(tier.targets[row.cell].addresses)
        return _json(rows)

    async def endpoints(self, request: Request) -> Response:  # noqa: ARG002
        """Endpoints with their policies."""
        return _json(snapshot.endpoints(self._router.tier))

    async def servers(self, request: Request) -> Response:  # noqa: ARG002
        """Every server of every leaf that answers, and a row for each leaf that does not."""
        rows = [row for view in await self._leaves() for row in view.servers]
        return _json(sorted(rows, key=lambda row: (row.cell, row.server, row.leaf)))

    async def curves(self, request: Request) -> Response:  # noqa: ARG002
        """The curves, with the samples of every leaf that answers."""
        if self._router.tier.role == "leaf":
            return _json(leaf_view(self._router).curves)
        theirs: dict[tuple[str, str], list[CurveRow]] = {}
        for view in await self._leaves():
            for row in view.curves:
                theirs.setdefault((row.cell, row.endpoint), []).append(row)
        rows = snapshot.curves(self._router.tier, self._router.clock())
        for row in rows:
            _add_samples(row, theirs.get((row.cell, row.endpoint), []))
        return _json(rows)

    async def requests(self, request: Request) -> Response:  # noqa: ARG002
        """This router's open requests."""
        return _json(open_requests(self._router.ledger, self._router.clock()))

    async def kill(self, request: Request) -> Response:
        """End the one open request that has this id, and this number if one is given; its last state."""
        ledger, now_s = self._router.ledger, self._router.clock()
        wanted, number = request.path_params["id"], request.query_params.get("number")
        found = [row for row in open_requests(ledger, now_s) if row.id == wanted and number in {None, str(row.number)}]
        if not found:
            return _error(404, f"no open request has the id {wanted!r} (any more)")
        if len(found) > 1:
            numbers = ", ".join(str(row.number) for row in found)
            return _error(409, f"{len(found)} open requests have the id {wanted!r}; say which number: {numbers}")
        (row,) = found
        place = "/".join(filter(None, (row.cell, row.server))) or "nowhere"
        _LOG.warning(
            "an operator kills request %d (id %a): %s, at %s, open for %.1f s, %d bytes sent",
            *(row.number, row.id, row.phase, place, row.age_s, row.bytes_out),
        )
        ledger.open[row.number].kill()
        return _json(row)

    async def set_policy(self, request: Request) -> Response:
        """Switch an endpoint's policy; requests in flight are not touched."""
        endpoint = self._router.tier.endpoints.get(request.path_params["endpoint"])
        if endpoint is None:
            return self._unknown(request)
        try:
            switch = msgspec.json.decode(await request.body(), type=Switch)
        except msgspec.DecodeError as error:
            return _error(400, f"the body of a policy change: {error}")
        return self._policy(endpoint.name, switch.applied_to(endpoint.policy))

    async def revert_policy(self, request: Request) -> Response:
        """Go back to the configured policy."""
        endpoint = request.path_params["endpoint"]
        return self._policy(endpoint, "") if endpoint in self._router.tier.endpoints else self._unknown(request)

    def _policy(self, endpoint: str, policy: str) -> Response:
        tier = self._router.tier
        try:
            tier.policy_set(self._router.clock(), endpoint, policy)
        except ConfigError as error:
            return _error(400, str(error))
        return _json(snapshot.endpoints(tier))

    def _unknown(self, request: Request) -> Response:
        known = ", ".join(sorted(self._router.tier.endpoints)) or "none"
        return _error(404, f"there is no endpoint {request.path_params['endpoint']!r}; known: {known}")

    async def _leaves(self) -> list[LeafView]:
        """What the leaves show: this process's own, and those that peers answer with, under the root's own names."""
        router = self._router
        if router.tier.role == "leaf":
            return [leaf_view(router)]
        now_s = router.clock()
        views = [
            LeafView(snapshot.servers(leaf, now_s), snapshot.curves(leaf, now_s)) for leaf in router.local.values()
        ]
        remote = [
            (target.name, address)
            for target in router.tier.targets.values()
            for address in target.addresses
            if address not in router.local
        ]
        headers = {"dlb-token": router.token.decode()} if router.token else {}
        async with httpx.AsyncClient(timeout=LEAF_TIMEOUT_S, headers=headers, trust_env=False) as client:
            found = await asyncio.gather(*(self._leaf(client, cell, address) for cell, address in remote))
        return views + list(found)

    async def _leaf(self, client: httpx.AsyncClient, cell: str, address: str) -> LeafView:
        """What a leaf shows, or why it is not used: the rest is worth having without it."""
        fault = self._router.leaf_faults.of(address)
        view = fault or await _ask_leaf(client, cell, address)
        if isinstance(view, str):
            return LeafView([ServerRow(cell=cell, leaf=address, why=view)], [])
        return view

    def _faults(self, addresses: Iterable[str]) -> str:
        faults = ((address, self._router.leaf_faults.of(address)) for address in addresses)
        return "; ".join(f"leaf {address} {fault}" for address, fault in faults if fault)


async def _ask_leaf(client: httpx.AsyncClient, cell: str, address: str) -> LeafView | str:
    """What a leaf shows, or what keeps it from showing anything."""
    try:
        response = await client.get(address + INSPECT_PATH)
        if response.status_code == 401:
            return OTHER_TOKEN
        view = msgspec.json.decode(response.content, type=LeafView)
    except httpx.HTTPError:
        return NO_ANSWER
    except msgspec.DecodeError:
        return "answers what cannot be read"
    for server in view.servers:
        server.cell, server.leaf = cell, address
    for curve in view.curves:
        curve.cell = cell
    return view


def _add_samples(row: CurveRow, leaves: list[CurveRow]) -> None:
    """Give a cell's curve the samples of its leaves, or say what a leaf says of its absence."""
    row.bins = leaves[0].bins if len(leaves) == 1 else pooled(b for leaf in leaves for b in leaf.bins)
    if row.curve is None:
        row.why = next((leaf.why for leaf in leaves if leaf.why), row.why)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)
