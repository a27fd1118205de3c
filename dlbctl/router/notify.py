"""Tells the service manager how the process stands (sd_notify(3)); where there is none, nobody."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping

_LOG = logging.getLogger(__name__)


class Notifier:
    """Speaks to the socket that the environment names."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def __repr__(self) -> str:
        return f"<Notifier to {self._address or 'nobody'}>"

    def ready(self, status: str = "") -> None:
        """It serves, or serves again after a reload. status: a line for `systemctl status`."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends that."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It takes no more work."""
        self._say("STOPPING=1")

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(self._address)
                sock.send("\n".join(lines).encode())
        except OSError as error:
            _LOG.warning("the service manager at NOTIFY_SOCKET cannot be told %s: %s", lines[0], error)
