#!/bin/bash
# D4PG on Slurm: a Ray on every machine of the job, the launcher on the first. Submit it from a
# directory on a file system that all machines share:  sbatch slurm.sh
#SBATCH --job-name=d4pg-swingup
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
set -euo pipefail
source .venv/bin/activate # rl-replicator, the same one for all machines.

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000)) # Two jobs may share a machine.

# A token of this job's own: nobody else on the machines can use its Ray.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
export RAY_AUTH_TOKEN
directory=/tmp/ray-$SLURM_JOB_ID

srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" \
    ray start --block --head --node-ip-address="$address" --port="$port" \
    --include-dashboard=false --temp-dir="$directory" &
until (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; do sleep 1; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --overlap \
        --exclude="$head" ray start --block --address="$address:$port" &
fi
sleep 20 # Nodes go where there is a Ray when the run starts.

# This script runs on the first machine, so the launcher does. Slurm signals the script alone: the Rays
# must outlive the launcher, which then saves.
rl-replicator train d4pg --env cartpole:swingup --steps 250000 --actors 16 \
    --launch ray --address "$address:$port" --run-dir runs/swingup &
launcher=$!
trap 'kill -TERM "$launcher"' TERM
status=0
wait "$launcher" || status=$?
if kill -0 "$launcher" 2>/dev/null; then # A signal ended the first wait.
    status=0
    wait "$launcher" || status=$?
fi
exit "$status"
