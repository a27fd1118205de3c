"""What the pages say that the code cannot know: the overview, the environment, and examples of use."""

from __future__ import annotations

OVERVIEW = """
`dlbctl` spreads requests for large language models over inference servers that speak the OpenAI API, on two
tiers. A root router takes the requests of clients and chooses a cell: a site, region or cluster. A leaf router
in the cell chooses a server. Leaves learn their cell's latency curve, how long requests take at which load, from
the requests they serve; roots weigh the curves and the network's round trips against each other.

Each endpoint, a model name that clients send, has a policy: a mechanism, how to choose, and a cost, how loaded a
target is, written `MECHANISM/COST`. It can be switched while requests run. dlbctl.toml(5) lists the policies.

Commands that read print tables; with --json they print JSON for machines. Results go to standard output,
everything else to standard error.
"""

EXIT_STATUS = {
    0: "All went well.",
    1: "It failed; the message says why.",
    2: "The command line is wrong.",
    3: "A configuration or trace file is invalid; the message names file and key, or line.",
    4: "A router or server does not answer.",
    5: "All went well, and the service objective was missed.",
}

ENVIRONMENT = {
    "DLBCTL_ADMIN": """Admin addresses of the routers that reading and switching commands speak to, `unix:PATH` or
        `host:port`; several with commas. The option --admin is stronger.""",
    "DLBCTL_TARGET": "Where `dlbctl replay` sends requests, unless --target is given.",
    "DLBCTL_API_KEY": "The API key that `dlbctl replay` sends, unless --api-key-file is given.",
    "DLBCTL_SECTION__KEY": """Overrides `key` of `[section]` in the configuration file of a router, for instance
        `DLBCTL_ROOT__LISTEN`. See dlbctl.toml(5).""",
    "NO_COLOR": "When set and not empty, output has no colours. Output that goes to a pipe has none either.",
    "XDG_RUNTIME_DIR": "The folder of the default admin sockets.",
}

FILES = {
    "./root.toml, /etc/dlbctl/root.toml": "Configuration of a root: the first that exists, unless --config is given.",
    "./leaf.toml, /etc/dlbctl/leaf.toml": "Configuration of a leaf, likewise.",
    "$XDG_RUNTIME_DIR/dlbctl/root.sock, $XDG_RUNTIME_DIR/dlbctl/leaf.sock": """Admin sockets of the routers of this
        user, unless their configuration names others. Without that variable they are `/tmp/dlbctl-UID/root.sock` and
        `/tmp/dlbctl-UID/leaf.sock`.""",
}

_SIGNALS = """
SIGTERM lets the process leave without a request lost. `/readyz` answers 503 while connections are still accepted for
`readiness_grace_s`; then no more are, and requests in flight have `drain_s` to end. SIGINT does the same without the
first wait. A further signal ends the wait that it meets.

SIGHUP reads the configuration file again, as `dlbctl reload` does; the log says what changed, or why the file was
refused and nothing was.
"""

_SOCKETS = """
Listening sockets may be handed over by whoever starts the process, as systemd does (sd_listen_fds(3)): each is for the
listener whose key it is named by (`listen`, `peer_listen`, `admin`), or else for the one configured to its address. One
that fits none is an error. Such a socket is closed at once on SIGTERM, without the grace: whoever holds it gives it to
the next process, started before, and no connection is refused. Clients may still use their idle connections for
`readiness_grace_s`.

With NOTIFY_SOCKET in the environment the process says when it is ready, reloads and stops (sd_notify(3)).
"""

# By verb: sections of its own.
SECTIONS = {role: {"SIGNALS": _SIGNALS, "SOCKETS": _SOCKETS} for role in ("root", "leaf")}

# By verb, the overview under "": what it is for, and the lines to type.
EXAMPLES = {
    "": {
        "Run one process in front of a site's servers:": "dlbctl root --config root.toml",
        "Ask for something, and see where it went:": r"""
curl http://127.0.0.1:8080/v1/chat/completions \
    -d '{"model": "qwen3-35b", "messages": [{"role": "user", "content": "Hello"}]}'
dlbctl inspect cells""",
        "Switch to another policy; requests in flight are not touched:": """
dlbctl policy set qwen3-35b discrete/gradient""",
    },
    "root": {
        "Run a root from `./root.toml` or `/etc/dlbctl/root.toml`:": "dlbctl root",
        "Run it from another file on another address:": """
DLBCTL_ROOT__LISTEN=127.0.0.1:8000 dlbctl root --config site.toml""",
    },
    "leaf": {
        "Run a leaf from `./leaf.toml` or `/etc/dlbctl/leaf.toml`:": "dlbctl leaf",
        "Run it from another file for another cell:": """
DLBCTL_LEAF__CELL=eu-frankfurt dlbctl leaf --config site.toml""",
    },
    "inspect": {
        "Watch load, latency and share of the cells of a root:": "dlbctl inspect cells --watch",
        "See which cost each endpoint is on, and why:": "dlbctl inspect endpoints",
        "Read the latency curves of a router whose admin socket is elsewhere, for a program:": """
dlbctl inspect curves --admin unix:/run/dlbctl/root.sock --json""",
        "Watch the requests that are open, the oldest first:": "dlbctl inspect requests --watch",
    },
    "kill": {
        "End a request that `dlbctl inspect requests` shows:": "dlbctl kill 5f1c2a9e04b7-1d",
        "End one of several to which their client gave the same id:": "dlbctl kill nightly-batch --number 4711",
    },
    "policy": {
        "See what policies are made of:": "dlbctl policy list",
        "Route an endpoint by marginal cost:": "dlbctl policy set qwen3-35b discrete/gradient",
        "Keep its mechanism and change its cost, in two roots:": r"""
dlbctl policy set qwen3-35b --cost rif \
    --admin 127.0.0.1:9001,127.0.0.1:9002""",
        "Go back to what the configuration says:": "dlbctl policy revert qwen3-35b",
    },
    "drain": {
        "Take a cell out, and wait until nothing of it is in flight:": "dlbctl drain eu-frankfurt --wait",
        "Take one server out at its leaf:": r"""
dlbctl drain http://10.0.1.1:8000 --admin unix:/run/dlbctl/leaf.sock""",
    },
    "undrain": {
        "Put a cell back:": "dlbctl undrain eu-frankfurt",
    },
    "server": {
        "Add a server that is worth two, and is asked what it serves:": """
dlbctl server add http://10.0.1.3:8000 --weight 2""",
        "Remove it again:": "dlbctl server remove http://10.0.1.3:8000",
    },
    "reload": {
        "Check a changed file, then have the router of this machine take it over:": """
dlbctl check /etc/dlbctl/root.toml && dlbctl reload""",
    },
    "check": {
        "Check a file before a restart:": """
dlbctl check /etc/dlbctl/root.toml && systemctl restart dlbctl-root""",
    },
    "up": {
        "Run a fleet of three regions on this machine until Ctrl-C:": "dlbctl up",
        "Run one from a file for a minute:": "dlbctl up fleet.toml --for 60s",
    },
    "engine": {
        "Run four engines that take as long as an L40S would:": "dlbctl engine --profile l40s --count 4",
        "Run one on a known port that answers every tenth request with an error:": """
dlbctl engine --port 8000 --error-rate 0.1""",
    },
    "replay": {
        "Replay ten minutes of a trace at twice its pace, and keep the results:": """
dlbctl replay trace.jsonl --end 600 --speedup 2 --out results""",
        "Spread its sessions over two roots, and fail when the objective is missed:": r"""
dlbctl replay trace.jsonl --slo ttft=2s,e2e=30s \
    --target http://10.0.0.1:8080=2 --target http://10.0.0.2:8080""",
    },
    "simulate": {
        "See whether flow routing on marginal cost settles, and how far from the optimum:": """
dlbctl simulate fluid network.toml""",
        "The same network at 90 % of what it can serve, with a stepsize of one's own, for a program:": r"""
dlbctl simulate fluid network.toml --utilisation 0.9 --stepsize 0.001 \
    --time 1000 --json --csv run.csv""",
        "Set the paper's policies side by side on four random networks:": "dlbctl simulate baseline",
        "See how three of them bear a burst, at two levels of load, and keep every run's figures:": r"""
dlbctl simulate baseline --burst --utilisation 0.6,0.8 --csv runs.csv \
    --policies mnlb,flow/gradient,discrete/gradient""",
        "See how the stepsize of flow routing trades adapting slowly against swinging, in a network at 60 %:": r"""
dlbctl simulate step-size network.toml --utilisation 0.6 --horizons 10,100,1000""",
        "See what policies lose when curves are wrong, the more so the more they are:": r"""
dlbctl simulate noise --noise 0.1,0.3,0.9 --scenarios 10 --csv runs.csv""",
        "Ask of the roots that run what would be if a cell were lost and demand rose by a third:": r"""
dlbctl simulate fleet --trace trace.jsonl --lose eu-frankfurt --demand 1.33""",
        "Compare policies on a fleet of `dlbctl up`, as it is and with a further cell:": r"""
dlbctl simulate fleet --from fleet.toml --trace trace.jsonl --add us-west-2=4 \
    --policy discrete/latency,discrete/gradient,flow/gradient""",
        "Do so for a deployment that is known by its root.toml only:": r"""
dlbctl simulate fleet --from root.toml --trace trace.jsonl --profile h100 \
    --cell us-ashburn=16,eu-frankfurt=12,ap-seoul=8 --slow eu-frankfurt=3@60""",
    },
}
