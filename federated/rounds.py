"""The rounds of a programme at the coordinator: ask, join, keep on the disk; a run that was killed goes on."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from distlfm.config import fingerprint
from distlfm.errors import UsageError, WorkError
from distlfm.federated.codec import Codec, Vector, weights_digest
from distlfm.federated.figures import names_of
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.strategy import (
    SHARED,
    SITES,
    WEIGHT,
    TooFewSites,
    make_strategy,
    moments,
    restore,
    survivors,
    wait_for_sites,
)
from distlfm.lfo import Operator
from distlfm.store.files import put_all, storing
from distlfm.store.lock import driver_lock

STATE, KEPT = "state.json", "kept"
CHOICE = ("loss", "kept_round", "chosen")
Line = dict[str, Any]
Listener = Callable[[Line], None]


@dataclass
class State:
    """Where a run is: rounds done, the shared weights [D], what each round told, what the strategy remembers.

    kept, loss, kept_round: the weights that were best so far for the patients that choose, and after which round they
    came; 0 is before the first. chosen: all rounds are done, and the last model was measured too.
    """

    done: int
    vector: Vector
    history: list[Line] = field(default_factory=list)
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)
    kept: Vector | None = None
    loss: float | None = None
    kept_round: int = 0
    chosen: bool = False

    def see(self, loss: float) -> None:
        """The loss of the weights as they are now; the best ones are kept."""
        if self.loss is None or loss < self.loss:
            self.kept, self.loss, self.kept_round = self.vector, loss, self.done

    @property
    def result(self) -> Vector:
        """The model of the run: the best one, or the last one if none was measured."""
        return self.vector if self.kept is None else self.kept


class Keeper:
    """A run's folder at the coordinator: state.json and the weights of the last rounds."""

    def __init__(self, folder: Path, programme: ProgrammeConfig, base: str, codec: Codec) -> None:
        self.folder = folder
        self.identity = {"programme": fingerprint(programme.work()), "base": base, "codec": codec.digest}
        with storing(STATE, folder):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> State | None:
        """Where the run was, or None if it has not begun."""
        path = self.folder / STATE
        if not path.exists():
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        for name, here in self.identity.items():
            if told["identity"][name] != here:
                raise UsageError(
                    f"{self.folder} was begun with another {name}.", "Give the run another name, or its own settings."
                )
        with np.load(self.folder / told["weights"], allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        vector, kept = arrays.pop(SHARED), arrays.pop(KEPT, None)
        return State(told["done"], vector, told["history"], arrays, kept, *(told[name] for name in CHOICE))

    def save(self, state: State) -> None:
        """After each round; the one before stays until this one lasts."""
        name = f"round-{state.done:04d}.npz"
        weights = io.BytesIO()
        best = {} if state.kept is None else {KEPT: state.kept}
        np.savez(weights, **{SHARED: state.vector}, **best, **state.memory)
        told = {"identity": self.identity, "done": state.done, "weights": name, "history": state.history}
        told |= {key: getattr(state, key) for key in CHOICE}
        with storing("the round", self.folder):
            put_all({self.folder / name: weights.getvalue()})
            put_all({self.folder / STATE: f"{json.dumps(told, indent=2)}\n".encode()})
            for old in self.folder.glob("round-*.npz"):
                if old.name < f"round-{state.done - 1:04d}.npz":
                    old.unlink(missing_ok=True)


def run_rounds(
    grid: Grid,
    operator: Operator,
    codec: Codec,
    programme: ProgrammeConfig,
    folder: Path,
    run: str = "",
    on_round: Listener | None = None,
) -> State:
    """All rounds of a programme, from where the folder says. The operator is not changed.

    A round in which too few sites end is lost: the model stays, and the round is asked for again. After
    `programme.lost` of these in a row the run ends with an error, and the same call goes on later. A folder whose
    rounds are being run is refused: of two runs under one name each would undo the other's rounds.
    """
    base = weights_digest(operator.model)
    keeper = Keeper(folder, programme, base, codec)
    with driver_lock(folder, "federated run"):
        return _rounds(grid, operator, codec, programme, keeper, {"base": base, "run": run}, on_round)


def _rounds(
    grid: Grid,
    operator: Operator,
    codec: Codec,
    programme: ProgrammeConfig,
    keeper: Keeper,
    told: Mapping[str, str | int],
    on_round: Listener | None,
) -> State:
    state = keeper.load() or State(0, codec.encode(operator.model.state_dict()))
    strategy = make_strategy(programme)
    restore(strategy, state.memory)
    lost = attempts = 0
    while state.done < programme.rounds:
        attempts += 1
        line = _round(grid, strategy, programme, state, {**told, "attempt": attempts})
        if on_round is not None:
            on_round(line)
        if line["sites"] < programme.min_sites:
            lost += 1
            if lost > programme.lost:
                raise TooFewSites(
                    f"Round {line['round']} was lost {lost} times: {line['sites']} of at least {programme.min_sites} "
                    "sites were left at its end.",
                    "See the sites' audit logs for why they refused or were lost; then start the run again.",
                )
            continue
        lost = 0
        keeper.save(state)
    if programme.evaluate and not state.chosen:
        _measure_last(grid, programme, state, told)
        keeper.save(state)
    return state


def _round(
    grid: Grid, strategy: FedAvg, programme: ProgrammeConfig, state: State, told: Mapping[str, str | int]
) -> Line:
    """One round; the state moves on if it was not lost."""
    begun, number = time.monotonic(), state.done + 1
    task = programme.round_task(number).model_dump_json()
    config = ConfigRecord({"task": task, "evaluate": programme.evaluate, **told})
    arrays = ArrayRecord({SHARED: Array(state.vector)})
    messages = strategy.configure_train(number, arrays, config, grid)
    left = max(1.0, programme.deadline - (time.monotonic() - begun))
    replies = list(grid.send_and_receive(messages, timeout=left))
    sites = survivors(replies)
    line: Line = {"round": number, "sites": sites}
    joined, metrics = strategy.aggregate_train(number, replies)
    if joined is not None:
        vector = np.asarray(joined[SHARED].numpy(), np.float64)
        if not np.isfinite(vector).all():
            raise WorkError(f"The weights of round {number} are not finite.", "Lower task.lr, and start another run.")
        figures = {} if metrics is None else {key: value for key, value in metrics.items() if key != SITES}
        line |= {"seconds": time.monotonic() - begun, **figures}
        loss = figures.get(names_of(programme.task.kind)[0])
        if isinstance(loss, float):  # of the weights that were sent
            state.see(loss)
        state.done, state.vector, state.memory = number, vector, moments(strategy)
        state.history.append(line)
    else:
        line["sites"] = min(sites, programme.min_sites - 1)
    return line


def _measure_last(grid: Grid, programme: ProgrammeConfig, state: State, told: Mapping[str, str | int]) -> None:
    """The last model has not been sent yet: one more sum tells how good it is. If too few answer, it is not chosen."""
    config = ConfigRecord({"task": programme.task.model_dump_json(), **told})
    record = RecordDict({"arrays": ArrayRecord({SHARED: Array(state.vector)}), "config": config})
    nodes = wait_for_sites(grid, programme.min_sites, programme.deadline)
    messages = [Message(record, node, MessageType.EVALUATE) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=programme.deadline))
    if survivors(replies) >= programme.min_sites:
        figures = aggregate_metricrecords([reply.content for reply in replies if not reply.has_error()], WEIGHT)
        loss = figures[names_of(programme.task.kind)[0]]
        assert isinstance(loss, float)
        state.see(loss)
    state.chosen = True


def ask(grid: Grid, operator: Operator, codec: Codec, programme: ProgrammeConfig, folder: Path, run: str) -> Line:
    """One question to all sites, answered as a secure sum: means over the federation's patients.

    The model that is asked about is that of the folder's rounds, if there are some, else the operator itself.
    """
    base = weights_digest(operator.model)
    state = Keeper(folder, programme, base, codec).load() if (folder / STATE).exists() else None
    vector = codec.encode(operator.model.state_dict()) if state is None else state.result
    config = ConfigRecord({"task": programme.task.model_dump_json(), "base": base, "run": run})
    record = RecordDict({"arrays": ArrayRecord({SHARED: Array(vector)}), "config": config})
    nodes = wait_for_sites(grid, programme.min_sites, programme.deadline)
    messages = [Message(record, node, f"query.{programme.question}") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=programme.deadline))
    sites = survivors(replies)
    if sites < programme.min_sites:
        reasons = sorted({str(reply.error.reason) for reply in replies if reply.has_error()})
        raise TooFewSites(
            f"The question {programme.question!r} was answered by {sites} of at least {programme.min_sites} sites: "
            f"{'; '.join(reasons) or 'no reason is known'}.",
            "See the sites' audit logs.",
        )
    figures = aggregate_metricrecords([reply.content for reply in replies if not reply.has_error()], WEIGHT)
    return {"question": programme.question, "sites": sites, **{k: v for k, v in figures.items() if k != SITES}}
