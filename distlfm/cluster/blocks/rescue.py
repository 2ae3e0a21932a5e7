"""A block that fails: find the rows that fail on their own, set those aside, and do the rest.

The block is tried twice whole. Then its bad rows are looked for by halves; a row is bad only if alone it raises twice,
or kills its worker twice. Then the block is done without them. If none was bad, the block is done whole, so that a
worker killed from outside changes no number. If that raises too, no row of it can be had. An input that is refused
would be refused again: for that once is enough, each time.

What runs out of memory is done again when nothing else is in hand, and so is a block that takes its worker down though
none of its rows does. If it does so even then, it is lost: nothing of it is stored, so that a later try may have it.

Where no row is to blame, as the disk is full or the processes that the fit needs cannot be started, the run ends.

This knows of no process and no clock: a pool does `action`, and tells by `feed` how it went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from distlfm.cluster.blocks.job import Failure, failure_of
from distlfm.errors import WorkError

WHOLE_TRIES = 2
LAST_TRIES = 2
STRIKES = 2
"""Failures of one sort, alone, that make a row bad."""

START_TRIES = 2
"""So often in a row the processes that a block needs may fail to start: the machine may have been busy."""

NOBODY = ("storage", "extra")
"""No row is to blame if one of these fails, and none can be had: the run ends at once."""

EVERYBODY = "usage"
"""If every row fails in this way before any block has worked, the call may be wrong and not the data. What fails so is
never tried again: neither chance nor the moment matters."""

LOST = (
    "Nothing of it is stored, and the same command tries it again. If memory is short, free some, or give fewer "
    "--workers; a new run with a smaller run.batch needs less."
)


@dataclass(frozen=True)
class Run:
    """`Worker.run`: do and store the block without some rows."""

    block: int
    left_out: Mapping[int, str]


@dataclass(frozen=True)
class Attempt:
    """`Worker.attempt`: try some rows, store nothing."""

    block: int
    rows: tuple[int, ...]


Action = Run | Attempt


class Phase(Enum):
    """Where a block stands."""

    WHOLE = "whole"
    SEARCH = "search"
    DOUBT = "doubt"
    LAST = "last"
    GIVEN_UP = "given up"
    DONE = "done"
    LOST = "lost"
    FATAL = "fatal"


class Rescue:
    """The road of one block with `count` rows, from its first try to done.

    left_out: rows set aside so far, with reasons. alone: it is to be done while nothing else is in hand. returned: how
    often in a row its action was lost without any fault of its own. error: what ends the whole run: at once if `phase`
    is FATAL, after all other blocks if it is LOST, and unless some block works if it is DOUBT.
    """

    def __init__(self, block: int, count: int) -> None:
        self.block = block
        self.count = count
        self.phase = Phase.WHOLE
        self.left_out: dict[int, str] = {}
        self.alone = False
        self.returned = 0
        self.error: Failure | None = None
        self._tries = self._starts = 0
        self._groups: list[tuple[int, ...]] = []
        self._strikes: Counter[tuple[int, str]] = Counter()
        self._families: set[str] = set()

    @property
    def finished(self) -> bool:
        """There is nothing more to do for this block."""
        return self.phase in (Phase.DONE, Phase.LOST, Phase.FATAL)

    @property
    def action(self) -> Action:
        """What to do now. Asking changes nothing: if its node is lost, an action is simply done again."""
        assert not self.finished
        assert self.phase is not Phase.DOUBT
        if self.phase is Phase.SEARCH:
            return Attempt(self.block, self._groups[-1])
        return Run(self.block, dict(self.left_out))

    def feed(self, failure: Failure | None, proven: bool) -> None:
        """How `action` went: None for well. proven: some block of this run has been done."""
        assert not self.finished
        self.returned = 0
        self._starts = self._starts + 1 if failure is not None and failure.family == "start" else 0
        if failure is not None and (failure.family in NOBODY or self._starts >= START_TRIES):
            self._end(Phase.FATAL, failure)
        elif self._starts:
            pass  # the same once more
        elif failure is not None and failure.starved and not self.alone:
            self.alone = True  # others had the memory: nothing is known against this one
        elif self.phase is Phase.SEARCH:
            self._search(failure)
            if not self._groups:
                self._conclude(failure, proven)
        elif failure is None:
            self.phase = Phase.DONE
        else:
            self._failed(failure, proven)

    def trust(self) -> None:
        """The call is right, as another block has worked: rows that were in doubt are bad."""
        assert self.phase is Phase.DOUBT
        self.error = None
        self._enter(Phase.LAST)

    def _failed(self, failure: Failure, proven: bool) -> None:
        """A whole run failed."""
        self._tries += max(WHOLE_TRIES, LAST_TRIES) if failure.family == EVERYBODY else 1
        if self.phase is Phase.WHOLE and self._tries >= WHOLE_TRIES:
            self._enter(Phase.SEARCH)
            self._split(tuple(range(self.count)))
            if self.count == 1 and failure.family == EVERYBODY:  # its only row was alone already
                self._search(failure)
                self._conclude(failure, proven)
        elif self.phase is Phase.LAST and self._tries >= LAST_TRIES:
            self._last_failed(failure)
        elif self.phase is Phase.GIVEN_UP and self._tries >= LAST_TRIES:
            cause = f"Block {self.block} fails even with all its rows left out: {failure.reason}"
            self._end(Phase.FATAL, failure_of(WorkError(cause, "Look at the log for the first failure.")))

    def _last_failed(self, failure: Failure) -> None:
        """The block fails as a whole, and by none of the rows that are left in it."""
        if not failure.died and not failure.starved:
            self._enter(Phase.GIVEN_UP)
            why = f"Its block fails as a whole, though not by this row alone: {failure.reason}"
            self.left_out = {row: self.left_out.get(row, why) for row in range(self.count)}
        elif not self.alone:
            self.alone = True
            self._tries = 0
        else:
            cause = f"Block {self.block} fails as a whole, though none of its rows does alone: {failure.reason}."
            self._end(Phase.LOST, failure_of(WorkError(cause, LOST)))

    def _search(self, failure: Failure | None) -> None:
        """A group of rows was tried alone."""
        rows = self._groups[-1]
        if failure is None:
            self._groups.pop()
        elif len(rows) > 1:
            self._groups.pop()
            self._split(rows)
        else:
            (row,) = rows
            sort = failure.family if failure.died or failure.starved else "raised"
            self._strikes[row, sort] += 1
            if self._strikes[row, sort] >= STRIKES or failure.family == EVERYBODY:
                self._groups.pop()
                self.left_out[row] = failure.reason
                self._families.add(failure.family)

    def _split(self, rows: tuple[int, ...]) -> None:
        """Look at both halves, the first one first."""
        half = (len(rows) + 1) // 2
        self._groups.extend(part for part in (rows[half:], rows[:half]) if part)

    def _conclude(self, failure: Failure | None, proven: bool) -> None:
        """All rows have been looked at."""
        everybody = len(self.left_out) == self.count and self._families == {EVERYBODY}
        if everybody and not proven and failure is not None:
            self._end(Phase.DOUBT, failure)
        else:
            self._enter(Phase.LAST)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._tries = 0

    def _end(self, phase: Phase, failure: Failure) -> None:
        self.phase = phase
        self.error = failure
