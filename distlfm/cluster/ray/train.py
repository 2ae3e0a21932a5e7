"""Ranks as workers of Ray Train: its `TorchTrainer` places them and makes their process group; the loop is the same.

Checkpoints are those of the task itself. A worker that dies takes its group with it, and a new one goes on from the
last checkpoint, a few times.
"""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distlfm.cluster.blocks.job import failure_of
from distlfm.cluster.machine import adopt_import_path, import_environment, import_path
from distlfm.cluster.ranks.group import GroupRanks, RankTask
from distlfm.cluster.ray.actors import THREADS, decode, encode
from distlfm.cluster.ray.session import RaySession
from distlfm.errors import UsageError, WorkError
from distlfm.optional import require
from distlfm.runtime.process import Stop
from distlfm.store.files import put_quickly

LOOK_SECONDS = 0.1
LOSSES = 3
"""How often workers may be lost before the training is given up."""

ANSWER, HALT = "answer.json", "halt"
DIED = "a process ended unexpectedly (killed from outside, out of memory, or a crash in compiled code)"
SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
}
"""Ray Train without what nobody looks at."""


class RayTraining:
    """`workers` ranks with `cpus` CPUs each.

    scratch: a folder that all nodes see, for what the driver and the first rank tell each other; removed at the end.
    """

    def __init__(self, session: RaySession, workers: int, cpus: int, scratch: Path) -> None:
        self.session, self.workers, self.cpus, self.scratch = session, workers, cpus, scratch
        room = sum(one // cpus for one in session.node_cpus().values())
        if workers > room:
            raise UsageError(
                f"{workers} workers of {cpus} CPUs were asked for, and there is room for {room}.",
                "Give fewer run.workers or run.threads.",
            )

    def run(
        self, task: RankTask, stop: Stop, warn: Callable[[str], None], look: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Let the workers do the task; gives the first one's report. look: called again and again meanwhile."""
        os.environ.update(SETTINGS)  # the session puts the environment back
        try:
            for lost in range(LOSSES + 1):
                shutil.rmtree(self.scratch, ignore_errors=True)
                self.scratch.mkdir(parents=True)
                trouble = self._attempt(task, stop, look)
                if (self.scratch / ANSWER).exists():
                    report, failure = decode((self.scratch / ANSWER).read_text(encoding="utf-8"))
                    if failure is not None:
                        raise failure.error()
                    return report
                if lost < LOSSES and not stop.requested:
                    warn(f"workers were lost, and new ones go on from the last checkpoint: {trouble}")
            raise WorkError(f"The workers of Ray Train end before their work: {trouble}.", "Look into Ray's logs.")
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _attempt(self, task: RankTask, stop: Stop, look: Callable[[], None]) -> str:
        """One life of the workers; gives what Ray says if they end badly."""
        trainer, trouble = self._trainer(task), [""]

        def fit() -> None:
            try:
                trainer.fit()
            except Exception as error:
                trouble[0] = _short(str(error))

        # In the main thread Ray would take the signals.
        thread = threading.Thread(target=fit, daemon=True)
        thread.start()
        while thread.is_alive():
            if stop.requested and not (self.scratch / HALT).exists():
                put_quickly(self.scratch / HALT, b"")
            look()
            thread.join(LOOK_SECONDS)
        look()
        return trouble[0]

    def _trainer(self, task: RankTask) -> Any:
        train, torch_train = require("ray.train", extra="ray"), require("ray.train.torch", extra="ray")
        environment = {**import_environment(), **dict.fromkeys(THREADS, str(self.cpus))}
        gpus = self.session.ray.cluster_resources().get("GPU", 0) >= self.workers
        payload = (import_path(), pickle.dumps(task), str(self.scratch))
        return torch_train.TorchTrainer(
            work,
            train_loop_config={"payload": payload},
            scaling_config=train.ScalingConfig(
                num_workers=self.workers,
                use_gpu=gpus,
                resources_per_worker={"CPU": self.cpus, **({"GPU": 1} if gpus else {})},
            ),
            run_config=train.RunConfig(
                name="train",
                storage_path=str(self.scratch / "ray"),
                failure_config=train.FailureConfig(max_failures=0),
                worker_runtime_env={"env_vars": environment},
            ),
        )


def _short(text: str) -> str:
    """The end of Ray's traceback; or, of its paragraphs on a worker that died, that it did."""
    return DIED if "died" in text and "OOM" in text else " ".join(text.split())[-300:]


def work(config: dict[str, Any]) -> None:
    """What runs in each of Ray Train's workers."""
    path, content, scratch = config["payload"]
    adopt_import_path(path)
    torch_train = require("ray.train.torch", extra="ray")
    ranks = GroupRanks(torch_train.get_device())
    halt = Path(scratch) / HALT
    try:
        task = pickle.loads(content)  # noqa: S301 (made by the driver)
        assert isinstance(task, RankTask)
        report = task(ranks, lambda: ranks.is_main and halt.exists())
    except Exception as error:
        # Raised too: the others wait for this one, until Ray ends them.
        if not followed(error):
            put_quickly(Path(scratch) / ANSWER, encode({}, failure_of(error)).encode())
        raise
    if ranks.is_main:
        put_quickly(Path(scratch) / ANSWER, encode(report, None).encode())


def followed(error: Exception) -> bool:
    """Whether another rank's end is the cause: the process group has broken down."""
    distributed = require("torch.distributed", extra="ray")
    text = str(error)
    return isinstance(error, distributed.DistError) or "onnection closed by peer" in text or "gloo" in text.lower()
