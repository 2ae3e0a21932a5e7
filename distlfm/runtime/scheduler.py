"""Which job of a scheduler this process belongs to."""

from __future__ import annotations

from collections.abc import Mapping


def job_name(environment: Mapping[str, str]) -> str:
    """Slurm's number of the job, `17`, or `12_3` for a task of an array; empty outside of Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
