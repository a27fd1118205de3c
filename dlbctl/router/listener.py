"""What is served on a listening socket: the paths of clients, and those of peers."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from dlbctl.core.errors import shortened
from dlbctl.router.downstream import Downstream
from dlbctl.router.request import Refusal

if TYPE_CHECKING:
    from dlbctl.router.limits import HttpLimits
    from dlbctl.router.request import Request
    from dlbctl.router.router import Router

# Paths of inference servers outside /v1/: SGLang's and llama.cpp's own.
NATIVE_PATHS = frozenset({b"/generate", b"/completion"})

Serve = Callable[[Downstream, "Request"], None]


class Listener:
    """The client listener: inference, health, models."""

    def __init__(self, router: Router, limits: HttpLimits, *, half_close: bool = False) -> None:
        self.router = router
        self.limits = limits
        self.half_close = half_close
        self.wheel = router.wheel
        self.clock = router.clock
        self._own: dict[bytes, Serve] = {
            b"/livez": self._live,
            b"/readyz": self._ready,
            b"/v1/models": self._models,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.router!r}>"

    def protocol(self, *, server_state: Any, **_: Any) -> Downstream:
        """Make a connection's protocol; uvicorn calls this as its `http` class, with keywords of its own."""
        return Downstream(self, server_state.connections)

    def serve(self, downstream: Downstream, request: Request) -> None:
        """Answer a whole request, here or by relaying it."""
        path = request.path
        own = self._own.get(path)
        if own is not None and request.method in {b"GET", b"HEAD"}:
            own(downstream, request)
        elif path.startswith(b"/v1/models/") and request.method in {b"GET", b"HEAD"}:
            self._model(downstream, request, unquote(path.removeprefix(b"/v1/models/")))
        elif path.startswith(b"/v1/") or path in NATIVE_PATHS:
            # `find`, because bytes `in` bytes first takes them for a number and has that fail.
            if path.find(b"/.") >= 0 or path.lower().find(b"%2e") >= 0:
                # A server that resolves them would be reached outside /v1/.
                _refuse(downstream, request, 400, "dot_segments", "a path with dot segments is not forwarded")
            else:
                self._relay(downstream, request)
        else:
            place = shortened(path.decode("latin-1"))
            _refuse(downstream, request, 404, "unknown_path", f"there is nothing at {place}")

    def _relay(self, downstream: Downstream, request: Request) -> None:
        self.router.relay(downstream, request, peer=False)

    def _live(self, downstream: Downstream, request: Request) -> None:
        downstream.reply(request, 200, b"ok\n", content_type=b"text/plain")

    def _ready(self, downstream: Downstream, request: Request) -> None:
        if self.router.routable():
            downstream.reply(request, 200, b"ready\n", content_type=b"text/plain")
        else:
            why = b"draining\n" if not self.router.ready else b"nothing is routable\n"
            downstream.reply(request, 503, why, content_type=b"text/plain")

    def _models(self, downstream: Downstream, request: Request) -> None:
        models = [_model_card(name) for name in self.router.tier.models()]
        downstream.reply(request, 200, msgspec.json.encode({"object": "list", "data": models}))

    def _model(self, downstream: Downstream, request: Request, name: str) -> None:
        if name in self.router.tier.models():
            downstream.reply(request, 200, msgspec.json.encode(_model_card(name)))
        else:
            _refuse(downstream, request, 404, "unknown_model", f"the model {shortened(name)!r} is not served here")


class PeerListener(Listener):
    """The peer listener: what roots ask of a leaf, from those that show the shared token (or from loopback)."""

    def __init__(self, router: Router, limits: HttpLimits, *, half_close: bool = False) -> None:
        super().__init__(router, limits, half_close=half_close)
        self._peer: dict[bytes, Serve] = {b"/dlb/v1/ping": self._ping}

    def add(self, path: bytes, serve: Serve) -> None:
        """Serve a further path to peers."""
        self._peer[path] = serve

    def serve(self, downstream: Downstream, request: Request) -> None:
        """Answer a peer; whoever is none gets 401 and nothing else."""
        token = self.router.token
        if token and not hmac.compare_digest(request.header(b"dlb-token"), token):
            _refuse(downstream, request, 401, "not_a_peer", "this listener is for peers that share the token")
            return
        peer = self._peer.get(request.path)
        if peer is not None:
            peer(downstream, request)
        else:
            super().serve(downstream, request)

    def _relay(self, downstream: Downstream, request: Request) -> None:
        self.router.relay(downstream, request, peer=True)

    def _ping(self, downstream: Downstream, request: Request) -> None:
        self.router.pinged(request)
        # How long the ping waited here is no distance: the root takes it off.
        residence_us = max(0, round((self.clock() - request.received_s) * 1e6))
        downstream.reply(
            request, 200, b"pong\n", b"dlb-residence-us: %d\r\n" % residence_us, content_type=b"text/plain"
        )


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "dlbctl"}


def _refuse(downstream: Downstream, request: Request, status: int, code: str, message: str) -> None:
    downstream.refuse(request, Refusal(status, code, message))
