#!/usr/bin/env bash
#SBATCH --job-name=spikecal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --requeue
# sbatch docs/how-to/distributed/slurm.sh convert resnet34-imagenet --weights w.safetensors --data imagenet:/shared/imagenet \
#   -T 64 --pipeline lcp --workdir /shared/work -o /shared/net.snn
# The working directory and the output lie on a disk that all nodes share. A requeued job resumes from the directory.
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=${PORT:-$((20000 + SLURM_JOB_ID % 10000))}  # two jobs may meet on one node
arguments=$(printf '%q ' "$@")
export OMP_NUM_THREADS=1
# one launcher on every node, one process for each of its cores, which srun does not take from sbatch
srun --cpus-per-task "$SLURM_CPUS_PER_TASK" bash -c "
  exec torchrun --nnodes $SLURM_NNODES --node-rank \$SLURM_NODEID --nproc-per-node $SLURM_CPUS_PER_TASK \
    --master-addr $head --master-port $port -m spikecal $arguments"
