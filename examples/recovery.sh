#!/bin/sh
# A demo job without torch and GPU: the workers start and pass a barrier in the agent's store. Then one worker kills itself,
# all workers restart, pass a barrier again and finish. It takes about two seconds.
#
#   cargo build --release
#   target/release/rallypoint run --nproc-per-node 3 --max-restarts 1 --tee 3 --no-python examples/recovery.sh
set -eu
rallypoint=$(command -v rallypoint || echo "${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/release/rallypoint")
store() { "$rallypoint" store --endpoint "$MASTER_ADDR:$MASTER_PORT" --timeout 30s "$@"; }

start=$((TORCHELASTIC_RESTART_COUNT + 1))
echo "start $start: rank $RANK of $WORLD_SIZE, process $$, store at $MASTER_ADDR:$MASTER_PORT"
sleep 0.4 # Only slows the demo down.
store barrier "demo/$start" "$WORLD_SIZE" >/dev/null
echo "all $WORLD_SIZE workers have arrived"
sleep 0.4

if [ "$start" = 1 ]; then
  if [ "$RANK" = 1 ]; then
    echo "rank 1 kills itself" >&2
    kill -9 $$
  fi
  sleep 30 # The other workers run until the agent stops and restarts them.
fi
echo "done"
