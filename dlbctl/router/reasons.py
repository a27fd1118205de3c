"""Reason codes: why a request ended as it did. One table for error bodies, access log and metrics.

A code says who ended the request; the phase it was in when it ended is told beside it. docs/reason-codes.md is
the same table for people.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

OK = "ok"
UPSTREAM_4XX = "upstream_4xx"
UPSTREAM_5XX = "upstream_5xx"
CLIENT_GONE = "client_gone"
CLIENT_STALLED = "client_stalled"
DRAIN_TIMEOUT = "drain_timeout"
KILLED = "killed"


class Party(StrEnum):
    """Who ended a request."""

    CLIENT = "client"
    ROUTER = "router"
    UPSTREAM = "upstream"  # a server, or the leaf that a root asked
    OPERATOR = "operator"
    NOBODY = "nobody"  # it was answered


class Phase(StrEnum):
    """How far a request had come when it ended."""

    READING = "reading"  # it was not taken in, or could not be read
    ROUTING = "routing"  # nobody had been asked yet
    QUEUED = "queued"  # it waited for a server with room
    CONNECTING = "connecting"
    WAITING = "waiting"  # it was written; no byte of an answer's body had come
    STREAMING = "streaming"
    COMPLETE = "complete"


class Reason(NamedTuple):
    """What is fixed about a code. phases: how far a request can have come."""

    by: Party
    phases: tuple[Phase, ...]


_READING = (Phase.READING,)
_UNSENT = (Phase.ROUTING, Phase.QUEUED, Phase.CONNECTING)  # it may have been tried elsewhere first
_CONNECTING = (Phase.CONNECTING,)
_WAITING = (Phase.WAITING,)
_ANSWER = (Phase.WAITING, Phase.STREAMING)
_OPEN = (Phase.ROUTING, Phase.QUEUED, Phase.CONNECTING, Phase.WAITING, Phase.STREAMING)
_COMPLETE = (Phase.COMPLETE,)

REASONS: dict[str, Reason] = {
    # It was answered by the upstream.
    OK: Reason(Party.NOBODY, _COMPLETE),
    UPSTREAM_4XX: Reason(Party.UPSTREAM, _COMPLETE),
    UPSTREAM_5XX: Reason(Party.UPSTREAM, _COMPLETE),
    # Not taken in.
    "bad_request": Reason(Party.CLIENT, _READING),
    "bad_host": Reason(Party.CLIENT, _READING),
    "bad_transfer_encoding": Reason(Party.CLIENT, _READING),
    "method_not_allowed": Reason(Party.CLIENT, _READING),
    "headers_too_large": Reason(Party.CLIENT, _READING),
    "body_too_large": Reason(Party.CLIENT, _READING),
    "request_timeout": Reason(Party.CLIENT, _READING),
    "invalid_body": Reason(Party.CLIENT, _READING),
    "dot_segments": Reason(Party.CLIENT, _READING),
    "unknown_path": Reason(Party.CLIENT, _READING),
    "not_a_peer": Reason(Party.CLIENT, _READING),
    "overloaded": Reason(Party.ROUTER, _READING),
    # Sent nowhere, or nowhere any more.
    "unknown_model": Reason(Party.CLIENT, (Phase.READING, Phase.ROUTING)),
    "no_routable_cell": Reason(Party.ROUTER, _UNSENT),
    "no_routable_server": Reason(Party.ROUTER, _UNSENT),
    "router_full": Reason(Party.ROUTER, _UNSENT),
    "endpoint_full": Reason(Party.ROUTER, _UNSENT),
    "all_cells_full": Reason(Party.ROUTER, _UNSENT),
    "all_servers_full": Reason(Party.ROUTER, _UNSENT),
    "all_cells_busy": Reason(Party.ROUTER, _UNSENT),
    "all_servers_busy": Reason(Party.ROUTER, _UNSENT),
    "no_room": Reason(Party.ROUTER, _UNSENT),
    "queue_full": Reason(Party.ROUTER, _UNSENT),
    "queue_deadline": Reason(Party.ROUTER, _UNSENT),
    "queue_shed": Reason(Party.ROUTER, (Phase.QUEUED,)),
    "queue_timeout": Reason(Party.ROUTER, (Phase.QUEUED,)),
    # Sent, and not answered whole.
    "upstream_unreachable": Reason(Party.UPSTREAM, _CONNECTING),
    "upstream_connect_timeout": Reason(Party.UPSTREAM, _CONNECTING),
    "upstream_busy": Reason(Party.UPSTREAM, _WAITING),
    "model_loading": Reason(Party.UPSTREAM, _WAITING),
    "upstream_error": Reason(Party.UPSTREAM, _WAITING),
    "upstream_closed": Reason(Party.UPSTREAM, _ANSWER),
    "upstream_protocol_error": Reason(Party.UPSTREAM, _ANSWER),
    "upstream_first_byte_timeout": Reason(Party.UPSTREAM, _WAITING),
    "upstream_idle_timeout": Reason(Party.UPSTREAM, (Phase.STREAMING,)),
    "total_timeout": Reason(Party.ROUTER, _OPEN),
    CLIENT_GONE: Reason(Party.CLIENT, _OPEN),
    CLIENT_STALLED: Reason(Party.CLIENT, _ANSWER),
    DRAIN_TIMEOUT: Reason(Party.OPERATOR, _OPEN),
    KILLED: Reason(Party.OPERATOR, _OPEN),
}
