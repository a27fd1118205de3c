"""What a client may send: the `[http]` table, and the limits a listener holds its connections to."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dlbctl.core.errors import ConfigError


class HttpLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may send, and how long it may take over it. Bytes and seconds."""

    header_bytes: Annotated[int, Meta(description="Largest request line and headers together.")] = 32 * 1024
    header_fields: Annotated[int, Meta(description="Most header fields.")] = 100
    body_bytes: Annotated[int, Meta(description="Largest request body.")] = 64 * 1024 * 1024
    replay_bytes: Annotated[
        int,
        Meta(description="Largest request body that is kept for a second attempt at another target."),
    ] = 1024 * 1024
    total_body_bytes: Annotated[
        int,
        Meta(description="Bytes of all request bodies whose answers have not begun; with more, requests get 503."),
    ] = 1024 * 1024 * 1024
    header_timeout_s: Annotated[
        float,
        Meta(description="Limit on a request's line and headers, from its first byte or the connection's start."),
    ] = 10.0
    body_timeout_s: Annotated[float, Meta(description="Longest silence within a request body.")] = 60.0
    keep_alive_s: Annotated[float, Meta(description="How long a connection may stay idle between requests.")] = 75.0

    def check(self, where: str) -> None:
        """Raise ConfigError for a limit that nothing could stay within."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:  # nor not-a-number
                raise ConfigError(f"{where}.{name}: must be positive")
        if self.total_body_bytes < self.body_bytes:
            raise ConfigError(
                f"{where}.total_body_bytes: is less than body_bytes, {self.body_bytes}",
                hint="a body of the largest size has to fit",
            )
