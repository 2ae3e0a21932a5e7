"""Runs the tasks of a link or a site: one process per message, forked from a warm one.

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
from collections.abc import Callable
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
Work = Callable[[str, ExecutionSpec], None]


class ForkingExecutor:
    """Flower's contract of an executor, for tasks of one kind."""

    def __init__(self, role: str, work: Work | None = None) -> None:
        self._role, self._work = role, work or perform
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
        process = self._context.Process(target=self._work, args=(self._role, spec))
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


def perform(role: str, spec: ExecutionSpec) -> None:
    """In the task's own process: run the app that the message is for."""
    flower.retry_soon()
    flower.install_whole(bundle.install)
    certificate = spec.root_certificates_path
    given: dict[str, Any] = {
        "runtime_api_address": spec.runtime_api_address,
        "token": spec.token,
        "insecure": spec.insecure,
        "certificates": None if certificate is None else Path(certificate).read_bytes(),
        "parent_pid": spec.parent_pid,
        "runtime_dependency_install": False,
    }
    if role == "link":
        from flwr.supercore.logger import mirror_output_to_queue
        from flwr.superlink.runtime import run_serverapp

        queue: Queue[str | None] = Queue()
        mirror_output_to_queue(queue)
        flower.reach_sites_with(flower.QuickGrid)
        run_serverapp(log_queue=queue, **given)
    else:
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        flower.send_errors_without_data()
        run_clientapp(**given)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def main(role: str, folder: str, address: str, *flags: str, work: Work | None = None) -> None:
    """Take and run tasks until the supervisor ends. work: what a task's process does, in place of `perform`."""
    os.umask(0o077)
    end_with_supervisor()
    home = Home(Path(folder))
    insecure = "--insecure" in flags
    flower.retry_soon()
    executor = ForkingExecutor(role, work)
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
