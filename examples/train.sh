#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --time=24:00:00
source .venv-verl/bin/activate
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --overlap --nodes=1 --ntasks=1 -w "$first" ray start --head --port=6379 --block &
sleep 20
srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$first" \
    ray start --address="$first:6379" --block &
sleep 20
export RAY_ADDRESS="$first:6379"
if [ -e runs/large/config.yaml ]; then
    workup resume runs/large
else
    workup cluster craft --cases ddxplus:FOLDER --policy Qwen/Qwen2.5-7B-Instruct --nodes 4 --out runs/large bf16=true
fi
