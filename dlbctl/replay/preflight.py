"""Before the first instant: which targets answer, and which model they serve."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from dlbctl.core.errors import DlbctlError, UnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from dlbctl.replay.targets import Target


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def reachable(targets: Sequence[Target], *, timeout_s: float) -> tuple[list[Target], list[str]]:
    """The targets that take a TCP connection, and for each other one what happened.

    Raises UnreachableError where none does.
    """
    with ThreadPoolExecutor(max_workers=min(16, len(targets))) as threads:
        failures = list(threads.map(lambda target: _connect_failure(target, timeout_s), targets))
    up = [target for target, failure in zip(targets, failures, strict=True) if failure is None]
    down = [failure for failure in failures if failure is not None]
    if not up:
        raise UnreachableError(
            f"no target is reachable: {'; '.join(down)}", hint="is it running? --target says where to send"
        )
    return up, down


def _connect_failure(target: Target, timeout_s: float) -> str | None:
    try:
        socket.create_connection((target.host, target.port), timeout=timeout_s).close()
    except OSError as error:
        return f"{target.url}: {error.strerror or error}"
    except UnicodeError as error:
        return f"{target.url}: no name that DNS can hold: {error}"
    return None


def only_model(target: Target, *, api_key: str | None, tls: ssl.SSLContext | None, timeout_s: float) -> str:
    """The one model that the target serves.

    Raises DlbctlError where it does not say, or serves none or several.
    """
    import httpx

    url = f"{target.url}/v1/models"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(url, headers=headers, timeout=timeout_s, trust_env=False, verify=tls or False)
        response.raise_for_status()
        names = sorted({model.id for model in msgspec.json.decode(response.content, type=_Models).data})
    except (httpx.HTTPError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DlbctlError(f"{url}: no list of models: {error}", hint="name the model with --model") from error
    if len(names) != 1:
        listed = f"{len(names)} models ({', '.join(names[:8])})" if names else "no model"
        raise DlbctlError(f"{url} lists {listed}: which to use?", hint="name the model with --model")
    return names[0]
