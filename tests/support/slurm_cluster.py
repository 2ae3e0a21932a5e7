"""A real Slurm of a few virtual nodes on this machine, as root: `Cluster` starts it, breaks it and ends it.

The controller and each node live in network, host name, mount and process namespaces of their own, joined by a bridge
that leads nowhere else: addresses and names differ as on a real cluster, a node dies as one, and files are shared as on
a network file system. Whatever dies, even the process that started it all, nothing of it is left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.fleet_runs import alive, descendants

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter", "setpriv")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NETWORK = "10.77.0"
CONTROLLER = "ctl"
CPUS, MEMORY = 2, 8000
"""What a node claims to have, memory in MiB; the machine may have less."""

START_SECONDS = 60.0
LOOK_SECONDS = 0.05
SETTINGS = """ClusterName=virtual
SlurmctldHost={controller}({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=300
MailProg=/bin/true
KillWait=30
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""
PARTITIONS = """PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
BOX = """hostname "$1"; mount --bind "$2/hosts" /etc/hosts; ip link set lo up; shift 2
[ "$1" != bridge ] || ip link add br0 type bridge
until ip link show "$3" >/dev/null 2>&1; do sleep 0.01; done
ip addr add "$2/24" dev "$3"; ip link set "$3" up; shift 3
"$@" & wait $!; while :; do sleep 3600 & wait $!; done
"""


def lacking() -> list[str]:
    """What a cluster needs and this machine has not."""
    needed = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    return needed if os.geteuid() == 0 else ["root's rights", *needed]


class Cluster:
    """A controller and nodes `n1`, `n2`, …; `folder` holds its settings, its logs and its secret."""

    def __init__(self, folder: Path, num_nodes: int = 2) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        self._boxes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, "PATH": SYSTEM_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in [name for name in self._environment if name.startswith(("SLURM_", "SBATCH_"))]:
            if name != "SLURM_CONF":
                del self._environment[name]

    def start(self) -> None:
        self._write_settings()
        munge = self.folder / "munge"
        daemon = ["munged", "-F", f"--key-file={munge / 'key'}", f"--socket={munge / 'socket'}"]
        daemon += [f"--{name}-file={munge / name}" for name in ("pid", "log", "seed")]
        self._boxes["munge"] = self._launch("munge", daemon)
        _until(lambda: (munge / "socket").exists(), "munge's socket")
        controller = ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")]
        self._box(CONTROLLER, "bridge", f"{NETWORK}.1", "br0", controller)
        _until(lambda: self.ask("ip", "-br", "link", "show", "br0", "up") != "", "bridge")
        for name in self.nodes:
            self.start_node(name)
        self.wait_idle()

    def start_node(self, name: str) -> None:
        """Bring a node up, for the first time or again."""
        for kind in ("spool", "tmp"):
            (self.folder / f"{kind}.{name}").mkdir(exist_ok=True)
        daemon = ["slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", name]
        self._box(name, "wire", address(name), "veth0", daemon)
        # From the controller's network alone: among its processes the node's has another number.
        there = ["nsenter", "-t", str(self._inner(CONTROLLER)), "--net", "ip", "link"]
        wire = ["type", "veth", "peer", "name", "veth0", "netns", str(self._inner(name))]
        for step in (["add", f"v{name}", *wire], ["set", f"v{name}", "master", "br0", "up"]):
            subprocess.run([*there, *step], env=self._environment, check=True, capture_output=True)

    def kill_node(self, name: str) -> None:
        """The power of a node is cut, and Slurm notices."""
        self.cut_power(name)
        self.give_up(name)

    def cut_power(self, name: str) -> None:
        """Slurm would notice after five minutes, unless it is told."""
        self._end(name)

    def give_up(self, name: str) -> None:
        """What Slurm does of itself when it has not heard of a node for long."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=power")

    def stop(self) -> None:
        """End everything; what jobs have left behind too."""
        for name in list(reversed(self._boxes)):
            self._end(name)

    def wait_idle(self) -> None:
        """Until every node waits for work."""
        query = ("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N")
        _until(lambda: set(self.ask(*query).split()) == set(self.nodes), "idle nodes", self.describe)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command on the controller's machine, as somebody at the login node types it."""
        done = subprocess.run(
            [*self._enter(CONTROLLER), *command], env=self._environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def ask(self, *command: str) -> str:
        return self.run(*command, check=False).stdout.strip()

    def processes(self, name: str) -> dict[int, str]:
        """What jobs run on a node: command lines by process number of this machine.

        Without any job there are the first process inside, and what it has started: slurmd, or when that has ended, a
        sleep.
        """
        if name not in self._boxes:
            return {}
        found, first = {}, self._inner(name)
        for pid in descendants(self._boxes[name].pid) - {first}:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                title = Path(f"/proc/{pid}/comm").read_text().strip()
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            own = title == "slurmd" or (parent == first and line == "sleep 3600")
            if alive(pid) and not own:
                found[pid] = line or title
        return found

    def wait_quiet(self, seconds: float = 20.0) -> None:
        """No process of any job is left on any node."""

        def left() -> dict[int, str]:
            return {pid: line for name in self.nodes for pid, line in self.processes(name).items()}

        _until(lambda: not left(), "quiet nodes", lambda: str(left()), seconds)

    @property
    def dead(self) -> list[str]:
        """Nodes without power."""
        return [name for name in self.nodes if name not in self._boxes]

    def describe(self) -> str:
        """How it is, for a failed test."""
        told = [self.ask("sinfo", "-N", "-l"), self.ask("squeue", "-a", "-l")]
        for log in ("slurmctld.log", *(f"{name}.box" for name in self._boxes)):
            if (self.folder / log).exists():
                told.append((self.folder / log).read_text(errors="replace")[-2000:])
        return "\n".join(told)

    def _end(self, name: str) -> None:
        box = self._boxes.pop(name)
        box.kill()
        box.wait()

    def _write_settings(self) -> None:
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o700)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o755)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        names = [f"{NETWORK}.1 {CONTROLLER}", *(f"{address(name)} {name}" for name in self.nodes)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        shape = f"CPUs={CPUS} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={MEMORY}"
        nodes = [f"NodeName={name} NodeAddr={address(name)} {shape} State=UNKNOWN\n" for name in self.nodes]
        text = SETTINGS.format(folder=self.folder, network=NETWORK, controller=CONTROLLER)
        text += "".join(nodes) + PARTITIONS.format(nodes=",".join(self.nodes))
        (self.folder / "slurm.conf").write_text(text)

    def _box(self, name: str, kind: str, where: str, device: str, command: Sequence[str]) -> None:
        """Run a daemon in namespaces of its own, under a shell that takes care of processes left alone."""
        own = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        shell = ["bash", "-c", BOX, "box", name, str(self.folder), kind, where, device, *command]
        self._boxes[name] = self._launch(name, [*own, "--propagation", "private", *shell])
        _until(lambda: self._inner(name) != 0, f"the box of {name}")

    def _launch(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.box").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def _inner(self, name: str) -> int:
        """The process that is the first one inside; 0 while there is none."""
        outer = self._boxes[name].pid
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
            ready = children and os.readlink(f"/proc/{children[0]}/ns/net") != os.readlink("/proc/self/ns/net")
        except OSError:
            return 0
        return int(children[0]) if ready else 0

    def _enter(self, name: str) -> list[str]:
        spaces = ["--net", "--uts", "--mount", "--pid"]
        return ["nsenter", "-t", str(self._inner(name)), *spaces, f"--wd={os.getcwd()}", "--"]


def address(name: str) -> str:
    return f"{NETWORK}.{10 + int(name[1:])}"


def _until(
    reached: Callable[[], bool], what: str, describe: Callable[[], str] = str, seconds: float = START_SECONDS
) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, f"no {what} within {seconds:g} s:\n{describe()}"
        time.sleep(LOOK_SECONDS)


@contextmanager
def running(num_nodes: int = 2) -> Iterator[Cluster]:
    """A cluster that is there, and gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = Cluster(folder, num_nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    import sys

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running(int(sys.argv[1]) if len(sys.argv) > 1 else 2) as one:
        inner = one._inner(CONTROLLER)
        sys.stdout.write(f"SLURM_CONF={one.folder}/slurm.conf nsenter -t {inner} --net --uts --mount --pid bash\n")
        sys.stdout.flush()
        signal.pause()
