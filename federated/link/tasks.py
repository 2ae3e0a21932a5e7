"""Runs the tasks of a link or a site: one process a message, forked from a warm one.

Flower's own runner starts a new interpreter for each message, which takes seconds, and writes the task's token on its
command line, where every user of the machine can read it. Here the token goes through a pipe. The runner takes tasks
of one kind only, so that no agent, connector or model of Flower's is ever run.

    python -m distlfm.federated.link.tasks link|site FOLDER ADDRESS [--insecure]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.run_superexec import run_superexec

from distlfm.federated.link import bundle, flower
from distlfm.federated.link.processes import end_with_supervisor, is_listening
from distlfm.federated.setup.homes import Home, check_secret

KINDS = {"link": TaskType.SERVER_APP, "site": TaskType.CLIENT_APP}
WARM = {
    "link": ["flwr.superlink.runtime", "distlfm.federated.server_app", "distlfm.federated.link.flower"],
    "site": ["flwr.supernode.runtime.run_clientapp", "distlfm.federated.client_app", "distlfm.federated.site.work"],
}
END_SECONDS = 3.0


@dataclass(frozen=True)
class Task:
    """What a task's process needs to know."""

    address: str
    token: str
    insecure: bool
    certificate: str | None
    parent: int


class ForkingExecutor:
    """Flower's contract of an executor, for tasks of one kind."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(WARM[role])
        forkserver.ensure_running()
        self._running: list[BaseProcess] = []

    def get_eligible_capacity(self, supported_task_types: set[TaskType], **_: Any) -> tuple[set[TaskType], set[str]]:
        """The one kind of task that is run here."""
        return {KINDS[self._role]} & supported_task_types, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a task."""
        if spec.task_type != KINDS[self._role]:
            return LaunchResult.failed(f"Tasks of kind {spec.task_type} are not run here.")
        task = Task(spec.runtime_api_address, spec.token, spec.insecure, spec.root_certificates_path, os.getpid())
        process = self._context.Process(target=perform, args=(self._role, task))
        process.start()
        self._running.append(process)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Forget processes that have ended."""
        self._running = [process for process in self._running if process.is_alive()]

    def close(self) -> None:
        """End the tasks that still run."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()


def perform(role: str, task: Task) -> None:
    """In the task's own process: run the app that the message is for."""
    flower.retry_soon()
    flower.install_whole(bundle.install)
    given = {
        "runtime_api_address": task.address,
        "token": task.token,
        "insecure": task.insecure,
        "certificates": None if task.certificate is None else Path(task.certificate).read_bytes(),
        "parent_pid": task.parent,
        "runtime_dependency_install": False,
    }
    if role == "link":
        _serve(given)
    else:
        _answer(given)


def _serve(given: dict[str, Any]) -> None:
    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

    queue: Queue[str | None] = Queue()
    mirror_output_to_queue(queue)
    flower.reach_sites_with(flower.QuickGrid)
    run_serverapp(log_queue=queue, **given)


def _answer(given: dict[str, Any]) -> None:
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    flower.send_errors_without_data()
    run_clientapp(**given)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def main(role: str, folder: str, address: str, *flags: str) -> None:
    """Take and run tasks until the supervisor ends."""
    os.umask(0o077)
    end_with_supervisor()
    home = Home(Path(folder))
    insecure = "--insecure" in flags
    flower.retry_soon()
    executor = ForkingExecutor(role)
    flower.run_tasks_with(executor)
    while not is_listening(*_split(address)):
        time.sleep(0.1)
    run_superexec(
        runtime_api_address=address,
        insecure=insecure,
        root_certificates_path=None if insecure else str(home.ca),
        superexec_auth_secret=check_secret(home.secret).read_bytes(),
        runtime_dependency_install=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
