#!/bin/sh
# `make demo`: a global load balancer at work on this machine, without a GPU, in a minute and a half.
#
# Three regions of modelled engines with the network delays between them get a minute of requests that ramps
# from idle to more than they can take. Half-way the routing cost is switched, live. At the end: the report,
# the policies in force and the latency curves that were learned. Exit 0 when no request failed.
set -eu

examples=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/dlbctl-demo.XXXXXX")
model=qwen3-35b
replay=

say() {
    printf '\n== %s\n' "$*"
}

# Let so many seconds pass; fewer when the replay has ended.
pass() {
    left=$1
    while [ "$left" -gt 0 ] && kill -0 "$replay" 2>/dev/null; do
        sleep 1
        left=$((left - 1))
    done
}

# However the demo ends, nothing of it is left running; its files stay only when something went wrong.
leave() {
    status=$?
    trap - EXIT INT TERM
    [ -z "$replay" ] || { kill "$replay" && wait "$replay"; } 2>/dev/null || true
    dlbctl up --stop --dir "$work/fleet" 2>/dev/null || true
    if [ "$status" -eq 0 ]; then
        rm -rf "$work"
        say 'Done, and everything is stopped. Your own turn: dlbctl up'
    else
        say "Not all went well (status $status). Everything is stopped; the logs are in $work/fleet/logs"
    fi
    exit "$status"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say 'Starting three regions: engines, a leaf and a root each, and the delays between them'
# --for: should even this script be killed, the fleet ends by itself.
dlbctl up "$examples/configs/fleet-demo.toml" --detach --dir "$work/fleet" --for 5m >"$work/up.txt"
cat "$work/up.txt"
# The two lines with DLBCTL_ADMIN and DLBCTL_TARGET: the commands below need no addresses.
eval "$(grep '^export ' "$work/up.txt")"
ashburn=${DLBCTL_ADMIN%%,*}

say 'Replaying a minute of requests through the three roots: from 1 to 24 a second'
dlbctl replay "$examples/traces/sample.jsonl" --quiet &
replay=$!

pass 10
say 'After 10 seconds the cells as the root in us-ashburn sees them (N/K: requests in flight per server)'
dlbctl inspect cells --admin "$ashburn"

pass 20
say 'Half-way, with the latency curves that were learned meanwhile (LATENCY)'
dlbctl inspect cells --admin "$ashburn"

say 'Switching every root from latency to marginal cost; requests in flight are not touched'
dlbctl policy set "$model" --cost gradient

pass 26
say 'Shortly before the peak: past the knee'
dlbctl inspect cells --admin "$ashburn"

say 'The report'
wait "$replay" && status=0 || status=$?
replay=

say 'The policy in force'
dlbctl inspect endpoints --admin "$ashburn"

say 'The latency curves that the leaves have learned (o: samples, dots: fitted)'
dlbctl inspect curves --admin "$ashburn"

exit "$status"
