"""Where patients come from: data named at the start, and files dropped on the page. Each has a key and a list of names.

A dropped file is read at once and deleted; its instances stay in memory until the page forgets them or the session
ends.
"""

from __future__ import annotations

import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from distlfm.config import apply_overrides, build
from distlfm.errors import DistlfmError, UsageError
from distlfm.fleets.sources import for_fitting, open_source
from distlfm.fleets.spool import Source
from distlfm.instance import Instance
from distlfm.lfo import OperatorSchema
from distlfm.queries.asking import check_data, renamed
from distlfm.runs.settings import DataConfig, QueryConfig, ServeConfig
from distlfm.serve.sizes import refuse_oversized

MOST_FILES = 8
"""Dropped files that are held; the oldest is forgotten first."""

MOST_LISTED = 200
"""Names that one look at a list gives."""

MOST_TOLD = 20
"""Sentences about one file."""

ALLOWED = ("data.columns.", "data.stride=", "data.scale=", "data.window=", "data.units.", "outputs=", "outputs.")
"""Settings that the page may give with a file: how it is read, never where it is."""

_LONGEST_NAME, _LONGEST_SETTING = 120, 2000


class UnknownKey(UsageError):
    """A key that is not, or no longer, known."""


Value = TypeVar("Value")


class RecentValues(dict[str, Value]):
    """The newest of some values, `most` of them, by their keys. what: the word for one. again: how it is had again."""

    def __init__(self, most: int, what: str, again: str) -> None:
        self._most, self._what, self._again = most, what, again

    def __missing__(self, key: str) -> Value:
        raise UnknownKey(f"This {self._what} is no longer held.", self._again)

    def keep(self, key: str, value: Value) -> Value:
        """Hold one more, and forget the oldest if they are too many."""
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]
        return value


@dataclass(frozen=True)
class Patients:
    """A source with its names in order, how it is prepared, and what was found on reading."""

    key: str
    name: str
    source: Source
    ids: tuple[str, ...]
    config: QueryConfig
    dropped: bool
    notices: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        notes = {"notices": self.notices[:MOST_TOLD], "set_aside": self.set_aside[:MOST_TOLD]}
        return {"key": self.key, "name": self.name, "count": len(self.ids), "dropped": self.dropped, **notes}

    def listed(self, search: str) -> dict[str, Any]:
        """Places and names that hold a text, the first ones of many."""
        wanted = search.casefold()
        matching = [(place, name) for place, name in enumerate(self.ids) if wanted in name.casefold()]
        patients = [{"place": place, "id": name} for place, name in matching[:MOST_LISTED]]
        return {"found": len(matching), "patients": patients}

    def instance(self, place: int, known: Sequence[str]) -> Instance:
        """An instance as `distlfm query` would ask about it. known: the operator's outputs."""
        if not 0 <= place < len(self.ids):
            raise UnknownKey(f"{self.name} has no patient at place {place}.", "Choose one of the list.")
        (one,) = self.source.read(place, place + 1)
        return renamed(for_fitting(one, self.config.data), self.config.outputs, known)


class Library:
    """All sources of a session. folder: where files are while they are read."""

    def __init__(self, config: ServeConfig, schema: OperatorSchema, folder: Path) -> None:
        self._config, self._schema, self._folder = config, schema, folder
        self._named: dict[str, Patients] = {}
        self._dropped = RecentValues[Patients](MOST_FILES, "file", "Drop it on the page again.")

    def open_named(self) -> None:
        """Read what was named at the start. Files are copied into the session's folder, a store is left where it is."""
        data = self._config.data
        if data.path is None and data.dataset is None:
            return
        name = data.path.name if data.path is not None else str(data.dataset)
        opened = self._opened(self._query(data), name, self._folder / "named")
        self._named[opened.key] = opened

    def __iter__(self) -> Iterator[Patients]:
        return chain(self._named.values(), self._dropped.values())

    def __getitem__(self, key: str) -> Patients:
        return self._named[key] if key in self._named else self._dropped[key]

    def add(self, file: Path, name: str, settings: Sequence[str] = ()) -> Patients:
        """Read a dropped file, which is deleted in any case."""
        folder = self._folder / secrets.token_hex(8)
        shown = safe_name(name)
        try:
            folder.mkdir(mode=0o700)
            place = folder / shown
            file.replace(place)
            refuse_oversized(place, shown, self._config.max_megabytes)
            opened = self._opened(self._settled(place, settings), shown, None, dropped=True)
        except DistlfmError as error:  # who dropped the file knows it by its name, not by where it is for a moment
            raise UsageError(_without(folder, str(error))) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            file.unlink(missing_ok=True)
        return self._dropped.keep(opened.key, opened)

    def forget(self, key: str) -> None:
        """Let go of a dropped file."""
        if self._dropped.pop(key, None) is None:
            raise UnknownKey("This file is no longer held.", "There is nothing to forget.")

    def _opened(self, config: QueryConfig, name: str, spool: Path | None, dropped: bool = False) -> Patients:
        source, intake = open_source(config.data, None, spool)
        check_data(self._schema, source, config.data, config.outputs)
        ids = tuple(one.id for piece in source.pieces() for one in piece)
        parent = config.data.path.parent if dropped and config.data.path is not None else None
        notes = [
            tuple(str(one) if parent is None else _without(parent, str(one)) for one in found)
            for found in (intake.notices, intake.set_aside)
        ]
        return Patients(secrets.token_urlsafe(9), name, source, ids, config, dropped, *notes)

    def _query(self, data: DataConfig) -> QueryConfig:
        return QueryConfig(checkpoint=self._config.checkpoint, data=data, outputs=self._config.outputs)

    def _settled(self, path: Path, settings: Sequence[str]) -> QueryConfig:
        # What is refused speaks of `columns.time`, as of a part of the data's settings.
        settings = [f"data.{one}" if one.startswith("columns.") else one for one in settings]
        wrong = next((one for one in settings if len(one) > _LONGEST_SETTING or not one.startswith(ALLOWED)), None)
        if wrong is not None:
            raise UsageError(
                f"{wrong[:_LONGEST_NAME]!r} is not a setting of a file.",
                "Give lines such as data.columns.time=hours or outputs.a=b.",
            )
        data = self._config.data.model_copy(update={"path": path, "dataset": None, "only": ()})
        content = self._query(data).model_dump(mode="json")
        return build(QueryConfig, apply_overrides(content, settings), source="settings")


def safe_name(name: str) -> str:
    """The last part of a name, without what a file's name must not have."""
    last = re.split(r"[/\\]", name)[-1]
    kept = "".join("_" if unicodedata.category(letter).startswith("C") else letter for letter in last).strip()
    return kept[-_LONGEST_NAME:].lstrip(".") or "file"


def _without(folder: Path, text: str) -> str:
    return text.replace(f"{folder}/", "").replace(str(folder), "the file")
