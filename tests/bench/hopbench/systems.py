"""The systems compared: each starts in front of the two upstream ports and says where it listens."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hopbench import environments
from hopbench.environments import UnavailableError
from hopbench.processes import Group
from hopbench.traffic import MODEL


@dataclass(frozen=True, slots=True)
class Site:
    """What a system is started with."""

    group: Group
    folder: Path  # its own, for configurations and logs
    upstreams: tuple[int, ...]  # ports
    package: Path  # where dlbctl is imported from
    environments: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.upstreams]


@dataclass(frozen=True, slots=True)
class System:
    """A name for the table, and how to start it; start returns the port that clients use."""

    name: str
    start: Callable[[Site], int]


def _free_port() -> int:
    """A port for programs that cannot bind 0 and tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _direct(site: Site) -> int:
    return site.upstreams[0]


_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_buffer_size 64k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream servers {{ least_conn; {servers} keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://servers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def _nginx(site: Site) -> int:
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        raise UnavailableError("no `nginx` on PATH")
    port = _free_port()
    servers = " ".join(f"server 127.0.0.1:{upstream};" for upstream in site.upstreams)
    config = site.folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=site.folder, servers=servers, port=port))
    site.group.launch([program, "-p", str(site.folder), "-e", "stderr", "-c", str(config)], name="nginx")
    return port


def _sglang_router(site: Site) -> int:
    program = environments.program(site.environments, "sglang-router", "0.3.2")
    return _launch_peer(site, [str(program), "launch"])


def _vllm_router(site: Site) -> int:
    return _launch_peer(site, [str(environments.program(site.environments, "vllm-router", "0.1.17"))])


def _launch_peer(site: Site, command: list[str]) -> int:
    """The two Rust routers take the same options; at `error` they log no line for each request."""
    port = _free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--log-level", "error"]
    options += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port())]
    site.group.launch([*command, *options, "--worker-urls", *site.urls], name="router")
    return port


def _dlbctl(site: Site, role: str, config: str, ready: str) -> str:
    """Start a dlbctl router; the URL on its ready line."""
    path = site.folder / f"{role}.toml"
    path.write_text(config)
    # -P: not from the folder where the benchmark was started.
    command = [sys.executable, "-P", "-m", "dlbctl", role, "--config", str(path)]
    pythonpath = os.pathsep.join(filter(None, [str(site.package), os.environ.get("PYTHONPATH")]))
    launched = site.group.launch(command, name=role, env={"PYTHONPATH": pythonpath})
    return launched.wait_for(ready)[0]


def _root_config(site: Site, cell: str) -> str:
    return f"""
[root]
cell = "here"
listen = "127.0.0.1:0"
admin = "unix:{site.folder}/root.sock"
readiness_grace_s = 0

[[cell]]
name = "here"
{cell}

[[endpoint]]
name = "{MODEL}"
"""


def _root(site: Site) -> int:
    servers = "\n".join(f'[[cell.server]]\nurl = "{url}"' for url in site.urls)
    return _port(_dlbctl(site, "root", _root_config(site, servers), "listening"))


def _root_leaf(site: Site) -> int:
    servers = "\n".join(f'[[server]]\nurl = "{url}"' for url in site.urls)
    leaf = f"""
[leaf]
cell = "here"
peer_listen = "127.0.0.1:0"
admin = "unix:{site.folder}/leaf.sock"
readiness_grace_s = 0

{servers}
"""
    peers = _dlbctl(site, "leaf", leaf, "peers")
    return _port(_dlbctl(site, "root", _root_config(site, f"leaves = {json.dumps([peers])}"), "listening"))


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


DIRECT = "direct"
NGINX = "nginx"
SGLANG = "sglang-router"
VLLM = "vllm-router"
ROOT = "dlbctl-root"
ROOT_LEAF = "dlbctl-root-leaf"

DLBCTL = frozenset({ROOT, ROOT_LEAF})

SYSTEMS = (
    System(DIRECT, _direct),
    System(NGINX, _nginx),
    System(SGLANG, _sglang_router),
    System(VLLM, _vllm_router),
    System(ROOT, _root),
    System(ROOT_LEAF, _root_leaf),
)
