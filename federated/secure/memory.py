"""What a site remembers between messages, each of which may be handled by a new process.

`Memory` has files that only the owner reads, changed under one lock and replaced whole. Never a site's values: only the
secrets of the masks while a sum is under way, which sites were answered with, and what was used up today.

`Drafts` holds files that a round leaves at a site aside, and puts them in place only after the round's sum was opened.
A coordinator can ask for work and then abandon the sum. What such work wrote must not change the next answer, so the
files of a sum wait in a folder of their own, named by the run and by the sum's session, which is a hash of its roster.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from distlfm.config import Config
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.epochs import History
from distlfm.federated.secure.member import MemberState, heads_in
from distlfm.federated.secure.messages import Head
from distlfm.federated.setup.homes import locked, replace_secret
from distlfm.store.files import put_all, storing

STATE = "the site's state"
FORGET_SECONDS = 24 * 3600.0
"""Secrets and drafts of a sum that was never finished are removed after this time; drafts also when the same run begins
another one."""

EPOCHS, HEADS = "epochs.json", "heads.json"


class Usage(Config):
    """What was used on a UTC day."""

    day: str = ""
    queries: int = 0
    bytes: int = 0
    votes: int = 0


class Seen(Config):
    """The newest lines of the others' audit logs, by site."""

    heads: dict[str, Head] = Field(default_factory=dict)


Kept = TypeVar("Kept", bound=Config)


class Memory:
    """The folder of a site's state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "secagg"

    def locked(self) -> AbstractContextManager[object]:
        """Nobody else reads or changes the memory meanwhile: two processes cannot both take the same step."""
        return locked(self._folder / "lock", STATE)

    def state(self, run: str) -> MemberState:
        """What is known of the sum under way in a run; refused if there is none."""
        try:
            return MemberState.model_validate_json(self._sum(run).read_bytes())
        except FileNotFoundError:
            raise Refused(Reason.STAGE, "No sum is under way in this run.") from None
        except ValidationError:
            raise Refused(Reason.STAGE, "What was remembered of this sum cannot be read.") from None

    def keep(self, run: str, state: MemberState) -> None:
        """Replace what is known of the sum under way; the secrets that are not in `state` are gone."""
        self._put(self._sum(run), state)

    def forget_old(self) -> None:
        """Remove what is left of sums that were never finished."""
        for path in self._folder.glob("sum-*.json"):
            if time.time() - path.stat().st_mtime > FORGET_SECONDS:
                path.unlink(missing_ok=True)

    def use(self, limit: Usage, *, queries: int = 0, bytes_: int = 0) -> None:
        """Count what is about to be used; refused, and not counted, beyond the limits of a day."""
        used = self._used()
        if queries and used.queries + queries > limit.queries:
            raise Refused(Reason.QUERIES, f"{limit.queries} a day.")
        if used.bytes + bytes_ > limit.bytes:
            raise Refused(Reason.BYTES, f"{limit.bytes} a day.")
        used = used.model_copy(update={"queries": used.queries + queries, "bytes": used.bytes + bytes_})
        self._put(self._folder / "usage.json", used)

    def use_vote(self, most: int) -> bool:
        """Count one more vote of the day; False, and not counted, if that is too many."""
        used = self._used()
        if used.votes >= most:
            return False
        self._put(self._folder / "usage.json", used.model_copy(update={"votes": used.votes + 1}))
        return True

    def _used(self) -> Usage:
        day = datetime.now(UTC).date().isoformat()
        used = self._read(Usage, "usage.json")
        return used if used.day == day else Usage(day=day)

    def history(self, pinned: frozenset[str]) -> History:
        """Return what was answered with which sites, in the epoch of the sites that are pinned now."""
        try:
            return self._read(History, EPOCHS).entered(pinned)
        except ValidationError:
            raise Refused(
                Reason.ROSTER,
                f"{self._folder / EPOCHS} cannot be read. Restore it from a copy: it says what was answered.",
            ) from None

    def answer(self, history: History, sites: frozenset[str], *, covered: bool) -> None:
        """Note that a sum over these sites is answered."""
        self._put(self._folder / EPOCHS, history.answered(sites, covered=covered))

    def seen(self, pins: Mapping[str, str]) -> dict[str, Head]:
        """Return the heads of the others' audit logs that they signed with the keys that are pinned now."""
        return heads_in(self._read(Seen, HEADS).heads, pins)

    def saw(self, heads: Mapping[str, Head], pins: Mapping[str, str]) -> None:
        """Remember newer heads; a log that has become shorter does not take the place of what was seen of it."""
        known = self.seen(pins)
        newer = {
            site: head
            for site, head in heads_in(heads, pins).items()
            if site not in known or known[site].number < head.number
        }
        self._put(self._folder / HEADS, Seen(heads={**known, **newer}))

    def _sum(self, run: str) -> Path:
        return self._folder / f"sum-{run}.json"

    def _read(self, kind: type[Kept], name: str) -> Kept:
        try:
            return kind.model_validate_json((self._folder / name).read_bytes())
        except FileNotFoundError:
            return kind()

    def _put(self, path: Path, content: BaseModel) -> None:
        with storing(STATE, self._folder):
            replace_secret(path, content.model_dump_json().encode())


_FOLDER: ContextVar[Path | None] = ContextVar("folder of drafts", default=None)


def draft_folder() -> Path | None:
    """Return where the app writes files that are kept if the sum is opened; None outside of a sum."""
    return _FOLDER.get()


class Drafts:
    """Files of the sums under way, below the folder of a site's state."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "drafts"

    @contextmanager
    def collect(self, run: str, session: str) -> Iterator[None]:
        """Let the app write files of a sum. Those of the run's earlier sums, never opened, are removed first."""
        for old in self._folder.glob("*.*"):
            if old.name.startswith(f"{run}.") or time.time() - old.stat().st_mtime > FORGET_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        folder = self._folder / f"{run}.{session}"
        with storing("a draft", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700)
        token = _FOLDER.set(folder)
        try:
            yield
        finally:
            _FOLDER.reset(token)

    def keep(self, run: str, session: str, target: Path) -> list[str]:
        """Move the files of an opened sum into `target` and return their names."""
        folder = self._folder / f"{run}.{session}"
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        if files:
            with storing("the site's model", target):
                target.mkdir(parents=True, exist_ok=True)
                put_all({target / file.name: file.read_bytes() for file in files})
        shutil.rmtree(folder, ignore_errors=True)
        return [file.name for file in files]
