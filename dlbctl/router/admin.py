"""The admin listener: what a running router shows, and the few things an operator may change in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dlbctl import __version__
from dlbctl.core import snapshot
from dlbctl.core.errors import ConfigError
from dlbctl.core.snapshot import CurveRow, ServerRow

if TYPE_CHECKING:
    from dlbctl.router.router import Router

LEAF_TIMEOUT_S = 2.0
# What a leaf shows to a root that is inspected: asked for by people, so never on the state stream.
INSPECT_PATH = "/dlb/v1/inspect"


class LeafView(msgspec.Struct):
    """A leaf's answer to a root's question."""

    servers: list[ServerRow]
    curves: list[CurveRow]


def leaf_view(router: Router) -> LeafView:
    """What a leaf shows of itself."""
    now_s = router.clock()
    return LeafView(snapshot.servers(router.tier, now_s), snapshot.curves(router.tier, now_s))


class Admin:
    """The handlers, over one router."""

    def __init__(self, router: Router) -> None:
        self._router = router

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
                Route("/v1/policy/{endpoint:path}", self.set_policy, methods=["PUT"]),
                Route("/v1/policy/{endpoint:path}", self.revert_policy, methods=["DELETE"]),
            ]
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
        return _json(snapshot.cells(tier, self._router.clock()) if tier.role == "root" else [])

    async def endpoints(self, request: Request) -> Response:  # noqa: ARG002
        """Endpoints with their policies."""
        return _json(snapshot.endpoints(self._router.tier))

    async def servers(self, request: Request) -> Response:  # noqa: ARG002
        """Every server of every leaf that answers."""
        return _json([row for view in await self._leaves() for row in view.servers])

    async def curves(self, request: Request) -> Response:  # noqa: ARG002
        """The curves, with the samples of every leaf that answers."""
        if self._router.tier.role == "leaf":
            return _json(leaf_view(self._router).curves)
        rows = snapshot.curves(self._router.tier, self._router.clock())
        bins = {(row.cell, row.endpoint): row for view in await self._leaves() for row in view.curves}
        for row in rows:
            theirs = bins.get((row.cell, row.endpoint))
            if theirs is not None:
                row.bins = theirs.bins
                row.why = row.why and (theirs.why or row.why)
        return _json(rows)

    async def set_policy(self, request: Request) -> Response:
        """Switch an endpoint's policy; requests in flight are not touched."""
        endpoint = request.path_params["endpoint"]
        try:
            body = msgspec.json.decode(await request.body(), type=dict[str, str])
        except msgspec.DecodeError as error:
            return _error(400, f"the body must be an object of policy, or mechanism and cost: {error}")
        return self._policy(endpoint, body)

    async def revert_policy(self, request: Request) -> Response:
        """Go back to the configured policy."""
        return self._policy(request.path_params["endpoint"], {"policy": ""})

    def _policy(self, name: str, wanted: dict[str, str]) -> Response:
        endpoint = self._router.tier.endpoints.get(name)
        if endpoint is None:
            known = ", ".join(sorted(self._router.tier.endpoints)) or "none"
            return _error(404, f"there is no endpoint {name!r}; known: {known}")
        mechanism, cost = endpoint.policy
        policy = wanted.get("policy", f"{wanted.get('mechanism', mechanism)}/{wanted.get('cost', cost)}")
        try:
            self._router.tier.policy_set(self._router.clock(), name, policy)
        except ConfigError as error:
            return _error(400, str(error))
        return _json(snapshot.endpoints(self._router.tier))

    async def _leaves(self) -> list[LeafView]:
        """What the leaves show: this process's own, and those that peers answer with."""
        if self._router.tier.role == "leaf":
            return [leaf_view(self._router)]
        now_s = self._router.clock()
        views = [
            LeafView(snapshot.servers(leaf, now_s), snapshot.curves(leaf, now_s))
            for leaf in self._router.local.values()
        ]
        addresses = [
            address
            for target in self._router.tier.targets.values()
            for address in target.addresses[:1]
            if address not in self._router.local
        ]
        headers = {"dlb-token": self._router.token.decode()} if self._router.token else {}
        async with httpx.AsyncClient(timeout=LEAF_TIMEOUT_S, headers=headers, trust_env=False) as client:
            found = await asyncio.gather(*(_ask_leaf(client, address) for address in addresses))
        return views + [view for view in found if view is not None]


async def _ask_leaf(client: httpx.AsyncClient, address: str) -> LeafView | None:
    try:
        response = await client.get(address + INSPECT_PATH)
        return msgspec.json.decode(response.content, type=LeafView) if response.status_code == 200 else None
    except (httpx.HTTPError, msgspec.DecodeError):
        return None  # its absence shows; the rest is worth having


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)
