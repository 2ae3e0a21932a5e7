#!/bin/bash
# What is special about a site. Copy it to slurm/site.sh, and keep what you need: every job script reads it first.
# Read it yourself before you submit (`. slurm/site.sh`), and sbatch knows account and partition too.

# Who pays, and where jobs go.
export SBATCH_ACCOUNT=my-project
export SBATCH_PARTITION=batch

# Modules, if the site has them. FEniCS, PETSc and MPI must be those that distlfm was installed with.
# module purge
# module load gcc openmpi

# Python with distlfm: an environment …
export DISTLFM_PYTHON=$HOME/distlfm/.venv/bin/python
# … or a container. It must see Slurm's commands (srun, scontrol), their settings and the socket of munge.
# export DISTLFM_PYTHON="apptainer exec --bind /etc/slurm,/run/munge $HOME/distlfm.sif python3"

# A directory of each node's own for temporary files, Ray's sockets and logs among them: not on a shared file system, and
# with a short name (22 characters).
export DISTLFM_SCRATCH=/tmp

# The network between nodes, if there are several: `ip -brief address` on a node lists them.
# export DISTLFM_INTERFACE=ib0

# A warned job is queued again by itself; 0 leaves that to you.
# export DISTLFM_REQUEUE=0
