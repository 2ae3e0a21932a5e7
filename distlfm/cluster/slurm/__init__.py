"""Slurm: the allocation of a job, batch scripts, the queue, and the jobs of a run."""
