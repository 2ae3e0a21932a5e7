"""The rounds of a programme at the coordinator: ask, join, keep on the disk; a run that was killed goes on."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from distlfm.config import fingerprint
from distlfm.errors import UsageError, WorkError
from distlfm.federated.codec import Codec, Vector, weights_digest
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.strategy import SHARED, SITES, TooFewSites, make_strategy, moments, restore, survivors
from distlfm.lfo import Operator
from distlfm.store.files import put_all, storing

STATE = "state.json"
Line = dict[str, Any]
Listener = Callable[[Line], None]


@dataclass
class State:
    """Where a run is: rounds done, the shared weights [D], what each round told, what the strategy remembers."""

    done: int
    vector: Vector
    history: list[Line] = field(default_factory=list)
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)


class Keeper:
    """A run's folder at the coordinator: state.json and the weights of the last rounds."""

    def __init__(self, folder: Path, programme: ProgrammeConfig, base: str, codec: Codec) -> None:
        self.folder = folder
        work = programme.model_copy(update={"operator": None, "deadline": 600.0, "rounds": 1})
        self.identity = {"programme": fingerprint(work), "base": base, "codec": codec.digest}
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
        return State(told["done"], arrays.pop(SHARED), told["history"], arrays)

    def save(self, state: State) -> None:
        """After each round; the one before stays until this one lasts."""
        name = f"round-{state.done:04d}.npz"
        weights = io.BytesIO()
        np.savez(weights, **{SHARED: state.vector}, **state.memory)
        told = {"identity": self.identity, "done": state.done, "weights": name, "history": state.history}
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
    `programme.lost` of these in a row the run ends with an error, and the same call goes on later.
    """
    base = weights_digest(operator.model)
    keeper = Keeper(folder, programme, base, codec)
    state = keeper.load() or State(0, codec.encode(operator.model.state_dict()))
    strategy = make_strategy(programme)
    restore(strategy, state.memory)
    lost = 0
    while state.done < programme.rounds:
        line = _round(grid, strategy, programme, state, base, run)
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
    return state


def _round(grid: Grid, strategy: FedAvg, programme: ProgrammeConfig, state: State, base: str, run: str) -> Line:
    """One round; the state moves on if it was not lost."""
    begun, number = time.monotonic(), state.done + 1
    config = ConfigRecord(
        {
            "task": programme.round_task(number).model_dump_json(),
            "base": base,
            "run": run,
            "evaluate": programme.evaluate,
        }
    )
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
        told = {} if metrics is None else {key: value for key, value in metrics.items() if key != SITES}
        line |= {"seconds": time.monotonic() - begun, **told}
        state.done, state.vector, state.memory = number, vector, moments(strategy)
        state.history.append(line)
    else:
        line["sites"] = min(sites, programme.min_sites - 1)
    return line
