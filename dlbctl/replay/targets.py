"""Where requests go: targets with weights, and the order in which a session tries them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash

from dlbctl.core.errors import UsageError

DEFAULT_TARGET = "http://127.0.0.1:8080"
_HINT = "a target is [NAME=]URL[=WEIGHT], as in http://127.0.0.1:8080 or eu=http://10.0.0.5:8080=2"
_TARGET = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+)=)?"
    r"(?P<url>https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(?P<path>/[A-Za-z0-9._~/%-]*)?)"
    r"(?:[:=](?P<weight>[0-9.]+(?:e-?\d+)?))?"
)


@dataclass(frozen=True, slots=True)
class Target:
    """One OpenAI-compatible server to send to. base_path has neither a final slash nor `/v1`."""

    name: str
    scheme: str
    host: str
    port: int
    base_path: str = ""
    weight: float = 1.0

    @property
    def host_header(self) -> str:
        """The authority, as the Host header and URLs write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL that paths such as `/v1/models` are appended to."""
        return f"{self.scheme}://{self.host_header}{self.base_path}"


def parse_target(text: str) -> Target:
    """Read `[NAME=]URL[:WEIGHT]` or `[NAME=]URL[=WEIGHT]`; after a bare host the colon is the port's.

    Raises UsageError.
    """
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--target {text!r}: not understood", hint=_HINT)
    parts = urlsplit(match["url"])
    try:
        port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
        weight = float(match["weight"] or 1.0)
    except ValueError as error:
        raise UsageError(f"--target {text!r}: {error}", hint=_HINT) from error
    if not 0 < weight < math.inf:
        raise UsageError(f"--target {text!r}: the weight must be above 0", hint=_HINT)
    name = match["name"] or f"{parts.hostname}:{port}"
    base_path = (match["path"] or "").rstrip("/").removesuffix("/v1")
    return Target(name, parts.scheme, parts.hostname or "", port, base_path, weight)


def parse_targets(texts: list[str]) -> tuple[Target, ...]:
    """Read every `--target`, each one or several with commas. Raises UsageError, also when two have one name."""
    targets = tuple(parse_target(part) for text in texts for part in text.split(","))
    names = [target.name for target in targets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--target: {', '.join(twice)} given twice", hint="give each target a NAME of its own")
    return targets


def ranked(targets: tuple[Target, ...], session: str) -> list[Target]:
    """The targets in the order this session tries them: weighted rendezvous hashing on their names.

    Shares follow the weights, and a session stays with its target when others come or go.
    """
    return sorted(targets, key=lambda target: _rendezvous_cost(target, session))


def _rendezvous_cost(target: Target, session: str) -> float:
    draw = xxhash.xxh3_64_intdigest(f"{session}|{target.name}".encode())
    return -math.log((draw + 0.5) / 2.0**64) / target.weight
