"""The admin listener: what a running router shows, and the few things an operator may change in it."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dlbctl import __version__
from dlbctl.core import snapshot
from dlbctl.core.bins import pooled
from dlbctl.core.errors import ConfigError, DlbctlError
from dlbctl.core.events import AdminState
from dlbctl.core.snapshot import CurveRow, ServerRow
from dlbctl.router.leaf_faults import NO_ANSWER, OTHER_TOKEN
from dlbctl.router.metrics import Metrics
from dlbctl.router.open_requests import open_requests
from dlbctl.router.sections import ServerSection

if TYPE_CHECKING:
    from dlbctl.core.policy import Policy
    from dlbctl.router.control import Control
    from dlbctl.router.router import Router
    from dlbctl.router.served import ServedCell

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
        return str(policy.switched(self.mechanism or "", self.cost or ""))


class Addition(msgspec.Struct, forbid_unknown_fields=True):
    """What POST /v1/servers takes. cell: may be left out where only one is served."""

    server: ServerSection
    cell: str = ""


def leaf_view(cell: ServedCell, now_s: float) -> LeafView:
    """What a leaf shows of the cell it serves."""
    return LeafView(cell.servers(now_s), snapshot.curves(cell.tier, now_s))


class AdminProtocol(HttpToolsProtocol):
    """uvicorn's own, which also knows who is at the other end of a unix socket: changes are told with their author."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepted."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED"):
            pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.client = (f"uid {uid} (pid {pid})", 0)


class NoPages:
    """Refuses what pages in a browser send: any of them may reach a loopback address of whoever looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Browsers say where each change they ask for comes from; nobody else does."""
        app = _error(403, "pages in a browser have no access") if "origin" in Headers(scope=scope) else self._app
        await app(scope, receive, send)


class Admin:
    """The handlers, over one router."""

    def __init__(self, router: Router, control: Control) -> None:
        self._router = router
        self._metrics = Metrics(router)
        self._control = control

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
                Route("/v1/servers", self.add_server, methods=["POST"]),
                Route("/v1/servers/{server:path}", self.remove_server, methods=["DELETE"]),
                Route("/v1/drain/{place:path}", self.drained),
                Route("/v1/drain/{place:path}", self.drain, methods=["PUT"]),
                Route("/v1/drain/{place:path}", self.undrain, methods=["DELETE"]),
                Route("/v1/reload", self.reload, methods=["POST"]),
            ],
            middleware=[Middleware(NoPages)],
            exception_handlers={HTTPException: _not_here, DlbctlError: _refused},
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
            return _json(snapshot.curves(self._router.tier, self._router.clock()))
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
            "request %d (id %a) killed by %s: %s, at %s, open for %.1f s, %d bytes sent",
            *(row.number, row.id, _author(request), row.phase, place, row.age_s, row.bytes_out),
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
        return self._policy(request, endpoint.name, switch.applied_to(endpoint.policy))

    async def revert_policy(self, request: Request) -> Response:
        """Go back to the configured policy."""
        endpoint = request.path_params["endpoint"]
        known = endpoint in self._router.tier.endpoints
        return self._policy(request, endpoint, "") if known else self._unknown(request)

    def _policy(self, request: Request, endpoint: str, policy: str) -> Response:
        self._control.set_policy(endpoint, policy, _author(request))
        return _json(snapshot.endpoints(self._router.tier))

    async def add_server(self, request: Request) -> Response:
        """Send requests to one more server of a cell that this process serves."""
        try:
            addition = msgspec.json.decode(await request.body(), type=Addition)
        except msgspec.DecodeError as error:
            return _error(400, f"the body of a new server: {error}")
        return _json(self._control.add_server(addition.server, addition.cell, _author(request)))

    async def remove_server(self, request: Request) -> Response:
        """Send no more requests to a server."""
        return _json(self._control.remove_server(request.path_params["server"], _author(request)))

    async def drained(self, request: Request) -> Response:
        """Whether a cell, leaf or server is drained, and what is in flight there."""
        return _json(self._control.drained(request.path_params["place"]))

    async def drain(self, request: Request) -> Response:
        """Send nothing new to a cell, leaf or server."""
        return _json(self._control.drain(request.path_params["place"], AdminState.DRAIN, _author(request)))

    async def undrain(self, request: Request) -> Response:
        """Send requests there again."""
        return _json(self._control.drain(request.path_params["place"], AdminState.READY, _author(request)))

    async def reload(self, request: Request) -> Response:
        """Take over the configuration file as it is now. 422 says why it is refused."""
        try:
            return _json(await self._control.reload(_author(request)))
        except ConfigError as error:
            return _error(422, str(error))

    def _unknown(self, request: Request) -> Response:
        known = ", ".join(sorted(self._router.tier.endpoints)) or "none"
        return _error(404, f"there is no endpoint {request.path_params['endpoint']!r}; known: {known}")

    async def _leaves(self) -> list[LeafView]:
        """What the leaves show: this process's own, and those that peers answer with, under the root's own names."""
        router = self._router
        views = [leaf_view(cell, router.clock()) for cell in self._control.served]
        if router.tier.role == "leaf":
            return views
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


def _author(request: Request) -> str:
    """Who asks: the user at the other end of a unix socket, or an address."""
    if request.client is None:
        return "a local user"
    return f"{request.client.host}:{request.client.port}" if request.client.port else request.client.host


async def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    return _error(400, str(error))


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)
