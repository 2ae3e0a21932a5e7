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
# … or a container. Jobs start steps from inside, so it must be given Slurm's commands with their plugins, settings and
# users, and munge's library and socket. These are Debian's places; `ldd $(command -v srun)` shows what else yours needs.
# lib=/usr/lib/x86_64-linux-gnu
# slurm=/usr/bin/srun,/usr/bin/scontrol,/usr/bin/scancel,/usr/bin/sbatch,$lib/slurm-wlm,$lib/libmunge.so.2
# slurm=$slurm,/etc/slurm,/run/munge,/etc/passwd,/etc/group
# export DISTLFM_PYTHON="apptainer exec --bind $slurm $HOME/distlfm.sif python3"

# A directory of each node's own for temporary files, Ray's sockets and logs among them: not on a shared file system, and
# with a short name (22 characters).
export DISTLFM_SCRATCH=/tmp

# The network between nodes, if there are several: `ip -brief address` on a node lists them.
# export DISTLFM_INTERFACE=ib0

# A warned job is queued again by itself; 0 leaves that to you.
# export DISTLFM_REQUEUE=0
