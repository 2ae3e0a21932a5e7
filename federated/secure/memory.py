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
from distlfm.federated.audit import AuditLog, last_entry, verify
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

EPOCHS, HEADS, USAGE = "epochs.json", "heads.json", "usage.json"


ANSWERED, USED = "consent", "used"
"""Lines of the audit log: a sum that the site has signed for, and what was used of a day's limits."""


class Usage(Config):
    """What was used on a UTC day. refusals: those that depend on patients' records, and so tell something of them."""

    day: str = ""
    queries: int = 0
    bytes: int = 0
    votes: int = 0
    rounds: int = 0
    refusals: int = 0


class Seen(Config):
    """The newest lines of the others' audit logs, by site."""

    heads: dict[str, Head] = Field(default_factory=dict)


Kept = TypeVar("Kept", bound=Config)


class Memory:
    """The folder of a site's state. The audit log knows better what was answered and used, if that is lost here."""

    def __init__(self, folder: Path, audit: AuditLog, run: str) -> None:
        self._folder, self._audit, self._run = folder / "secagg", audit, run

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

    def begin(self, limit: Usage, *, train: bool) -> None:
        """Count work for a round or a question before it is done; refused, and not counted, beyond a day's limits.

        Also where too much was refused today for what patients' records are: else it could be asked on and on, and
        whether it is refused would be the answer.
        """
        used = self._used()
        if used.refusals >= limit.refusals:
            raise Refused(Reason.QUERIES, f"{limit.refusals} refusals a day that depend on patients' records.")
        if train and used.rounds >= limit.rounds:
            raise Refused(Reason.ROUNDS, f"{limit.rounds} a day.")
        if not train and used.queries >= limit.queries:
            raise Refused(Reason.QUERIES, f"{limit.queries} a day.")
        more = {"rounds": used.rounds + 1} if train else {"queries": used.queries + 1}
        self._note(used.model_copy(update=more))

    def refuse(self) -> None:
        """Count a refusal that depends on patients' records."""
        used = self._used()
        self._note(used.model_copy(update={"refusals": used.refusals + 1}))

    def send(self, limit: Usage, size: int) -> None:
        """Count bytes that are about to leave; refused, and not counted, beyond the limit of a day."""
        used = self._used()
        if used.bytes + size > limit.bytes:
            raise Refused(Reason.BYTES, f"{limit.bytes} a day.")
        self._put(self._folder / USAGE, used.model_copy(update={"bytes": used.bytes + size}))

    def use_vote(self, most: int) -> bool:
        """Count one more vote of the day; False, and not counted, if that is too many."""
        used = self._used()
        if used.votes >= most:
            return False
        self._note(used.model_copy(update={"votes": used.votes + 1}))
        return True

    def _note(self, used: Usage) -> None:
        """Log what is used, then remember it."""
        self._audit.append(USED, self._run, **{f"{name}_used": value for name, value in used.model_dump().items()})
        self._put(self._folder / USAGE, used)

    def _used(self) -> Usage:
        """What was used today, as the file or the audit log says: whichever is more."""
        day = datetime.now(UTC).date().isoformat()
        noted = last_entry(self._audit.path, USED)
        facts = {} if noted is None else noted["facts"]
        logged = Usage.model_validate({name.removesuffix("_used"): value for name, value in facts.items()})
        known = [self._read(Usage, USAGE), logged]
        today = [one.model_dump(exclude={"day"}) for one in known if one.day == day]
        most = {name: max(one[name] for one in today) for name in today[0]} if today else {}
        return Usage(day=day, **most)

    def history(self, pinned: frozenset[str]) -> History:
        """Return what was answered with which sites, in the epoch of the sites that are pinned now."""
        try:
            known = self._read(History, EPOCHS)
        except ValidationError:
            raise Refused(
                Reason.ROSTER,
                f"{self._folder / EPOCHS} cannot be read. Restore it from a copy: it says what was answered.",
            ) from None
        noted = last_entry(self._audit.path, ANSWERED)
        if noted is not None and (not known.pinned or known.sums < noted["facts"].get("sums", 0)):
            lines = [one["facts"] for one in verify(self._audit.path).entries if one["event"] == ANSWERED]
            known = known.remembered(lines)
        return known.entered(pinned)

    def answer(self, history: History, sites: frozenset[str], *, covered: bool) -> History:
        """Note that a sum over these sites is answered."""
        found = history.answered(sites, covered=covered)
        self._put(self._folder / EPOCHS, found)
        return found

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
