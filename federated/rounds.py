"""The rounds of a programme at the coordinator: ask, join, keep on the disk; a run that was killed goes on."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from distlfm.config import digest
from distlfm.errors import OtherWork, WorkError
from distlfm.federated.codec import SHARED, Codec, Vector, weights_digest
from distlfm.federated.refused import Reason
from distlfm.federated.secure.mod import SECONDS, WEIGHT
from distlfm.federated.secure.records import SITES
from distlfm.federated.settings import ProgrammeConfig, RoundTask
from distlfm.federated.site.tuning import names_of
from distlfm.federated.site.votes import AGAINST, model_digest
from distlfm.federated.strategy import (
    TooFewSites,
    forget,
    joined,
    lost_nodes,
    make_strategy,
    moments,
    overclaimed,
    reasons,
    survivors,
    tally,
    unbounded,
    wait_for_sites,
)
from distlfm.lfo import Operator
from distlfm.store.files import put_all, storing
from distlfm.store.lock import driver_lock

STATE, KEPT = "state.json", "kept"
CHOICE = {"loss": None, "kept_round": 0, "chosen": False, "handed": False, "closing": 0, "last": None}
CHOICE |= {"best": None, "votes": None}
Line = dict[str, Any]
Listener = Callable[[Line], None]
CLAIMS = "If the sites' policies say `weights: patients`, set most_examples in the programme; else a site cheats."
Meter = Callable[[], int]
"""Bytes that have travelled since it was last asked."""


@dataclass
class RunState:
    """Where a run is: rounds done, the shared weights [D], what each round reported, what the strategy remembers.

    kept, loss, kept_round: the weights that were best so far for the patients that choose, and after which round they
    came; 0 is before the first. chosen: all rounds are done, and the last model was measured too. handed: the sites
    have the model of the run. closing: bytes of what was sent after the last round. figures: of the weights as they
    are now, if they were measured; a round that is asked for again does not ask for them again. last: of the weights
    after the last round. best: figures of the kept weights. votes: for and against the weights as they are now.
    """

    done: int
    vector: Vector
    history: list[Line] = field(default_factory=list)
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)
    kept: Vector | None = None
    loss: float | None = None
    kept_round: int = 0
    chosen: bool = False
    handed: bool = False
    closing: int = 0
    figures: Line | None = None
    last: Line | None = None
    best: Line | None = None
    votes: list[int] | None = None
    lost: set[int] = field(default_factory=set)

    @property
    def result(self) -> Vector:
        """The model of the run: the best one, or the last one if none was measured."""
        return self.vector if self.kept is None else self.kept


class Keeper:
    """A run's folder at the coordinator: state.json and the weights of the last rounds."""

    def __init__(self, folder: Path, programme: ProgrammeConfig, base: str, codec: Codec) -> None:
        self.folder = folder
        self.identity = {"programme": _identity(programme), "base": base, "codec": codec.digest}
        with storing(STATE, folder):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> RunState | None:
        """Where the run was, or None if it has not begun."""
        path = self.folder / STATE
        if not path.exists():
            return None
        facts = json.loads(path.read_text(encoding="utf-8"))
        for name, here in self.identity.items():
            if facts["identity"][name] != here:
                raise OtherWork(
                    f"{self.folder} was begun with another {name}.", "Give the run another name, or its own settings."
                )
        with np.load(self.folder / facts["weights"], allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        vector, kept = arrays.pop(SHARED), arrays.pop(KEPT, None)
        choice = {name: facts.get(name, unless) for name, unless in CHOICE.items()}
        return RunState(facts["done"], vector, facts["history"], arrays, kept, **choice)

    def save(self, state: RunState) -> None:
        """After each round; the one before stays until this one lasts."""
        name = f"round-{state.done:04d}.npz"
        weights = io.BytesIO()
        best = {} if state.kept is None else {KEPT: state.kept}
        np.savez(weights, **{SHARED: state.vector}, **best, **state.memory)
        facts = {"identity": self.identity, "done": state.done, "weights": name, "history": state.history}
        facts |= {key: getattr(state, key) for key in CHOICE}
        with storing("the round", self.folder):
            put_all({self.folder / name: weights.getvalue()})
            put_all({self.folder / STATE: f"{json.dumps(facts, indent=2)}\n".encode()})
            for old in self.folder.glob("round-*.npz"):
                if old.name < f"round-{state.done - 1:04d}.npz":
                    old.unlink(missing_ok=True)


def _identity(programme: ProgrammeConfig) -> str:
    """A hash of what the weights follow from, as runs of version 0.1 have it: without the bounds that are newer."""
    content = programme.work().model_dump(mode="json", exclude={"most_examples", "largest_update"})
    return digest(json.dumps(content, sort_keys=True))


def run_rounds(
    grid: Grid,
    operator: Operator,
    codec: Codec,
    programme: ProgrammeConfig,
    folder: Path,
    run: str = "",
    on_round: Listener | None = None,
    meter: Meter | None = None,
) -> RunState:
    """All rounds of a programme, from where the folder says. The operator is not changed.

    A round in which too few sites end is lost: the model stays, and the round is asked for again. After
    `programme.lost` of these in a row the run ends with an error, and the same call goes on later. A folder whose
    rounds are being run is refused: of two runs under one name each would undo the other's rounds.
    """
    base = weights_digest(operator.model)
    keeper = Keeper(folder, programme, base, codec)
    with driver_lock(folder, "federated run"):
        state = keeper.load() or RunState(0, codec.encode(operator.model.state_dict()))
        facts, listener = {"base": base, "run": run}, on_round or (lambda _: None)
        size = float(np.sqrt(sum(float(one.detach().double().square().sum()) for one in operator.model.parameters())))
        course = _Course(grid, programme, keeper, state, facts, listener, meter, size)
        course.run()
        course.close()
        return state


@dataclass(frozen=True)
class _Course:
    """The rounds of one run; `facts` go with every message. size: length of all weights of the first operator."""

    grid: Grid
    programme: ProgrammeConfig
    keeper: Keeper
    state: RunState
    facts: Mapping[str, str | int]
    on_round: Listener
    meter: Meter | None
    size: float

    def run(self) -> None:
        """Do what is left of the rounds."""
        programme, strategy = self.programme, make_strategy(self.programme, self.state.memory)
        lost = attempts = 0
        while self.state.done < programme.rounds:
            attempts += 1
            line = self._round(strategy, {**self.facts, "attempt": attempts})
            is_lost = line["sites"] < programme.min_sites
            if self.meter is not None and not is_lost:
                line["bytes"] = self.meter()  # those of attempts that were lost before are among them
            self.on_round(line)
            if not is_lost:
                lost = 0
                self.keeper.save(self.state)
                continue
            lost += 1
            if lost > programme.lost:
                raise TooFewSites(
                    f"Round {line['round']} was lost {lost} times: {line['sites']} of at least {programme.min_sites} "
                    f"sites were left at its end ({'; '.join(line['why']) or 'no reason is known'}).",
                    line["why"],
                )
            self._await(line)

    def _await(self, line: Line) -> None:
        """Wait for sites that are away, where the others answer with them or not at all."""
        wanted = {Reason.COHORT_FIXED.value, Reason.ROSTER.value}
        expected = max(getattr(self.grid, "expected", 0), line.get("asked", 0))
        if wanted & set(line["why"]) and len(list(self.grid.get_node_ids())) < expected:
            with suppress(TooFewSites):
                wait_for_sites(self.grid, expected, self.programme.deadline)

    def close(self) -> None:
        """Measure the last model, which has not been sent yet; if too few sites answer, it is not chosen.

        Then the sites get the model of the run, for their own copies; a site that is away keeps the copy it has.
        """
        programme, state = self.programme, self.state
        if programme.evaluate and not state.chosen:
            nodes = wait_for_sites(self.grid, programme.min_sites, programme.deadline)
            state.last = self._measure(make_strategy(programme, {}), self.facts, nodes, programme.deadline)
            state.chosen = True
            self.keeper.save(state)
            self.on_round({"after": state.done, "kept": state.kept_round, **(state.last or {})})
        if not state.handed:
            record = _record(state.result, programme.round_task(programme.rounds + 1), {"final": True, **self.facts})
            nodes = sorted(self.grid.get_node_ids())
            replies = _replies(self.grid, MessageType.TRAIN, record, nodes, programme.deadline)
            state.handed = survivors(replies) >= programme.min_sites
            state.closing += self.meter() if self.meter is not None else 0
            self.keeper.save(state)

    def _round(self, strategy: FedAvg, facts: Mapping[str, str | int]) -> Line:
        """One round; the state moves on if it was not lost. Its figures are of the weights that it begins with."""
        programme, state = self.programme, self.state
        begun, number = time.monotonic(), state.done + 1
        until = begun + programme.deadline
        nodes = wait_for_sites(self.grid, programme.min_sites, programme.deadline)
        # Those that were lost while the others masked are left out once, where the others may go on without them.
        nodes, state.lost = [one for one in nodes if one not in state.lost], set()
        if programme.evaluate and state.figures is None:
            self._measure(strategy, facts, nodes, (until - time.monotonic()) / 2)
        record = _record(state.vector, programme.round_task(number), {**facts, "server-round": number})
        replies = _replies(self.grid, MessageType.TRAIN, record, nodes, max(1.0, until - time.monotonic()))
        line: Line = {"round": number, "sites": survivors(replies)}
        if line["sites"] < programme.min_sites:
            if Reason.ROSTER.value in reasons(replies):
                state.lost = lost_nodes(replies)
            return line | {"why": reasons(replies), "asked": len(nodes)}
        mean = joined(make_strategy(ProgrammeConfig(), {}), number, state.vector, replies)
        beyond = unbounded(programme, self.size, mean - state.vector, replies)
        if beyond:
            return line | {"sites": 0, "why": [beyond]}
        vector = joined(strategy, number, state.vector, replies)
        if not np.isfinite(vector).all():
            raise WorkError(f"The weights of round {number} are not finite.", "Lower task.lr, and start another run.")
        line |= {"seconds": time.monotonic() - begun, **(state.figures or {})}
        if state.votes is not None:
            line["votes"] = state.votes
        state.votes = None
        state.done, state.vector, state.memory, state.figures = number, vector, moments(strategy), None
        state.history.append(line)
        return line

    def _measure(
        self, strategy: FedAvg, facts: Mapping[str, str | int], nodes: Sequence[int], seconds: float
    ) -> Line | None:
        """Figures of the weights as they are, for the patients that choose; if too few sites answer, there are none.

        It is a sum of its own: sites answer for figures all together or not at all, and may be lost in a round. The
        best weights so far are kept: those that most sites vote for or, without votes or with as many against, those
        of the least loss. Weights that most sites vote against are taken back, and the next round begins with the best.
        """
        state = self.state
        against = {} if state.kept is None else {AGAINST: model_digest(state.kept)}
        record = _record(state.vector, self.programme.task, {**facts, **against})
        replies = _replies(self.grid, MessageType.EVALUATE, record, nodes, max(1.0, seconds))
        if survivors(replies) < self.programme.min_sites:
            return None
        if overclaimed(self.programme, replies, "evaluate"):
            return None
        means = _means(replies)
        figures = {key: value for key, value in means.items() if key != WEIGHT}
        loss, (agreeing, opposed) = figures[names_of(self.programme.task.kind)[0]], tally(replies)
        state.figures, state.votes = figures, [agreeing, opposed] if agreeing + opposed else None
        if (
            state.kept is None
            or state.loss is None
            or agreeing > opposed
            or (agreeing == opposed and loss < state.loss)
        ):
            state.kept, state.loss, state.kept_round, state.best = state.vector, loss, state.done, figures
        elif opposed > agreeing:
            state.vector, state.figures, state.memory = state.kept, state.best or figures, {}
            forget(strategy)
        return figures


def _record(vector: Vector, task: RoundTask, facts: Mapping[str, str | int]) -> RecordDict:
    """What is sent with a message: the shared weights, and the task."""
    config = ConfigRecord({"task": task.model_dump_json(), **facts})
    return RecordDict({"arrays": ArrayRecord({SHARED: Array(vector)}), "config": config})


def _replies(grid: Grid, kind: str, record: RecordDict, nodes: Sequence[int], seconds: float) -> list[Message]:
    """Ask all nodes the same, and wait for what they say. They are told how long, and stop working after it."""
    record.config_records["config"][SECONDS] = float(seconds)
    return list(grid.send_and_receive([Message(record, node, kind) for node in nodes], timeout=seconds))


def _means(replies: Sequence[Message]) -> Line:
    """The figures of all sites together, and how many patients they are of."""
    figures = aggregate_metricrecords([reply.content for reply in replies if not reply.has_error()], WEIGHT)
    return {key: value for key, value in figures.items() if key != SITES}


def ask(grid: Grid, operator: Operator, codec: Codec, programme: ProgrammeConfig, folder: Path, run: str) -> Line:
    """One question to all sites, answered as a secure sum: means over the federation's patients.

    The model that is asked about is that of the folder's rounds, if there are some, else the operator itself.
    """
    base = weights_digest(operator.model)
    state = Keeper(folder, programme, base, codec).load()
    vector = codec.encode(operator.model.state_dict()) if state is None else state.result
    record = _record(vector, programme.task, {"base": base, "run": run})
    nodes = wait_for_sites(grid, programme.min_sites, programme.deadline)
    replies = _replies(grid, f"query.{programme.question}", record, nodes, programme.deadline)
    sites, why = survivors(replies), reasons(replies)
    if sites < programme.min_sites:
        raise TooFewSites(
            f"The question {programme.question!r} was answered by {sites} of at least {programme.min_sites} sites: "
            f"{'; '.join(why) or 'no reason is known'}.",
            why,
        )
    claimed = overclaimed(programme, replies, "query")
    if claimed:
        raise WorkError(f"The answer to {programme.question!r} counts for nothing: {claimed}.", CLAIMS)
    return {"question": programme.question, "sites": sites, **_means(replies)}
