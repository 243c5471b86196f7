#!/usr/bin/env bash
# Two nodes of torchrun on this machine, each with one process: what slurm.sh does, without Slurm.
#   docs/how-to/distributed/loopback.sh convert resnet20 -T 8 --pipeline lcp -o net.snn
set -uo pipefail
port=${PORT:-29500}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
node() {
  python -m torch.distributed.run --nnodes 2 --node-rank "$1" --nproc-per-node 1 \
    --master-addr 127.0.0.1 --master-port "$port" -m spikecal "${@:2}"
}
node 1 "$@" & second=$!
node 0 "$@"; first=$?
wait "$second" && exit "$first"
