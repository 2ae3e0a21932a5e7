"""Are Slurm's commands installed, and does this machine belong to a cluster?"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from distlfm.pipeline.probes.answer import Finding, reply

COMMANDS = ("sinfo", "sbatch", "srun")
# Without a configuration the commands do not even tell their version.
EMPTY_CLUSTER = "ClusterName=none\nSlurmctldHost=localhost\n"
VERSION_SECONDS = 10.0


def check() -> str:
    absent = [command for command in COMMANDS if shutil.which(command) is None]
    if absent:
        raise Finding("missing", f"{', '.join(absent)} not on the PATH; only `distlfm submit` needs Slurm")
    versions = {command: _version(command) for command in COMMANDS}
    if all(versions.values()):
        return f"{versions['sinfo']}, configured"
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
        configuration.write(EMPTY_CLUSTER)
        configuration.flush()
        versions = {command: _version(command, configuration.name) for command in COMMANDS}
    failed = [command for command, version in versions.items() if not version]
    if failed:
        raise Finding("broken", f"{', '.join(failed)} -V fails")
    return f"{versions['sinfo']} installed; no cluster is configured on this machine"


def _version(command: str, configuration: str | None = None) -> str:
    """What the command says of its version, empty if it fails."""
    environment = dict(os.environ) if configuration is None else {**os.environ, "SLURM_CONF": configuration}
    try:
        finished = subprocess.run(
            [command, "-V"], env=environment, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return finished.stdout.strip() if finished.returncode == 0 else ""


if __name__ == "__main__":
    reply(check)
