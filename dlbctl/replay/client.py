"""The sending side: pools of connections and the few retries that are allowed.

A refused connection moves the request to the next target, for no byte of it was sent. A pooled connection
that closes before any byte of the answer gets one fresh connection to the same target. Both are counted, both
keep the first timer; every other failure is the request's.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from dlbctl.replay.connection import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from dlbctl.replay.answer import Answer
    from dlbctl.replay.targets import Target
    from dlbctl.replay.wire import Request


class Pool:
    """The connections to one target, last used first; their number follows the load."""

    def __init__(self, target: Target, *, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls if target.scheme == "https" else None
        self._idle: list[Connection] = []
        self._addresses: list[tuple[str, int]] = []

    def __repr__(self) -> str:
        return f"<Pool {self._target.name}: {len(self._idle)} idle>"

    async def take(self) -> Connection:
        """An idle connection, or a new one. Raises what `open` does."""
        return self._idle.pop() if self._idle else await self.open()

    async def open(self) -> Connection:
        """A new connection. Raises ConnectionRefusedError if every address refuses, TimeoutError, OSError."""
        async with asyncio.timeout(self._connect_timeout_s):
            if not self._addresses:
                self._addresses = await self._resolve()
            return await self._connect()

    def close(self) -> None:
        """Close the idle connections; those in use belong to who took them."""
        for connection in list(self._idle):
            connection.drop()

    async def _resolve(self) -> list[tuple[str, int]]:
        # Once for a run: a look-up for each connection would be part of what is measured.
        found = await asyncio.get_running_loop().getaddrinfo(
            self._target.host, self._target.port, type=socket.SOCK_STREAM
        )
        return [(str(address[0]), int(address[1])) for *_, address in found]

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for host, port in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(self._idle.append, self._forget),
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=self._target.host if self._tls else None,
                )
            except OSError as error:
                if failure is None or not isinstance(error, ConnectionRefusedError):
                    failure = error
            else:
                return connection
        assert failure is not None
        raise failure

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


class Client:
    """Sends requests to targets and fills in their answers; nothing it meets outside raises."""

    def __init__(
        self,
        targets: Iterable[Target],
        *,
        connect_timeout_s: float,
        timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._timeout_s = timeout_s
        self._pools = {target.name: Pool(target, connect_timeout_s=connect_timeout_s, tls=tls) for target in targets}

    async def send(self, request: Request, order: Sequence[Target], answer: Answer) -> None:
        """Send to the first target of `order` that takes connections, until the answer has ended."""
        for moves, target in enumerate(order):
            answer.target = target.name
            answer.moved = moves
            try:
                await self._send_to(self._pools[target.name], request.to(target), answer)
            except ConnectionRefusedError:
                continue
            except TimeoutError:
                answer.fail("connect-timeout", time.monotonic())
            except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot hold
                answer.fail("connect-failed", time.monotonic(), str(error))
            return
        answer.fail("refused", time.monotonic(), "every target refused the connection")

    def close(self) -> None:
        """Close what is idle."""
        for pool in self._pools.values():
            pool.close()

    async def _send_to(self, pool: Pool, request: tuple[bytes, ...], answer: Answer) -> None:
        connection = await pool.take()
        pooled = connection.exchanges > 0
        await self._exchange(connection, request, answer)
        if pooled and answer.failure == "disconnected":
            answer.restart()
            answer.reconnected = True
            await self._exchange(await pool.open(), request, answer)

    async def _exchange(self, connection: Connection, request: tuple[bytes, ...], answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(self._timeout_s, connection.abort, "timeout")
        try:
            await connection.exchange(request, answer)
        except asyncio.CancelledError:
            connection.drop()
            raise
        finally:
            expiry.cancel()
