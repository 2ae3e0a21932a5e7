"""All that one `distlfm serve` holds: the operator, patients, answers and fits. Nothing of it outlives the session."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlfm.errors import UsageError
from distlfm.fleets.fit_job import safe
from distlfm.lfo import Operator, OperatorAnswer
from distlfm.queries.asking import ask, find_checkpoint, mark
from distlfm.serve.answers import Shown, agreement, parameter_rows, picture, plot_comparison, restored, written
from distlfm.serve.fits import Fits, Running, fit_options
from distlfm.serve.settings import ServeConfig
from distlfm.serve.sources import Library, Patients, Unknown
from distlfm.version import __version__

MOST_ANSWERS = 32
"""Answers that are held; the oldest is forgotten first."""

TYPES = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv; charset=utf-8"}


class File:
    """A file to show or to download."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content
        self.type = TYPES[name.rpartition(".")[2]]


class Session:
    """Requests come from several threads: readers, the network and matplotlib's settings are used by one at a time."""

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        checkpoint = find_checkpoint(config.checkpoint)
        self.config = config
        self.operator = Operator.load(checkpoint)
        self.mark = mark(checkpoint)
        self.folder = folder
        self.library = Library(config, self.operator.schema, folder)
        self.fits = Fits(folder, fit_options(config.fit, self.operator, config.plugins))
        self._answers: OrderedDict[str, Shown] = OrderedDict()
        self._lock = threading.RLock()

    def open(self) -> Session:
        """Read the data that were named at the start."""
        self.library.open_named()
        return self

    def close(self) -> None:
        self.fits.close()

    def about(self) -> dict[str, Any]:
        """What the operator takes and gives."""
        schema = self.operator.schema
        with self._lock:
            sources = [one.about() for one in self.library]
        return {
            "version": __version__,
            "checkpoint": self.mark,
            "mechanism": schema.mechanism.get("kind"),
            "outputs": schema.outputs,
            "forces": schema.forces,
            "dims": [{"name": dim.name, "start": dim.start, "stop": dim.stop} for dim in schema.dims],
            "units": dict(schema.units),
            "max_megabytes": self.config.max_megabytes,
            "no_fit": self.fits.reason,
            "fit": self.fits.how or "the operator's equation",
            "fit_priors": self.fits.priors,
            "notices": self.operator.notices,
            "sources": sources,
        }

    def patients(self, key: str, search: str) -> dict[str, Any]:
        """Names of a source that hold a text."""
        with self._lock:
            return self.library[key].listed(search)

    def add(self, file: Path, name: str, settings: Sequence[str]) -> Patients:
        with self._lock:
            return self.library.add(file, name, settings)

    def forget(self, key: str) -> None:
        """Let go of a dropped file, and of all that was answered of it."""
        with self._lock:
            gone = self.library[key]
            self.library.forget(key)
            for name in [name for name, one in self._answers.items() if one.source == gone.key]:
                del self._answers[name]
            self.fits.forget(gone.key)

    def answer(self, source: str, place: int) -> Shown:
        """Ask the operator about a patient."""
        with self._lock:
            patients = self.library[source]
            instance = patients.instance(place, self.operator.schema.outputs)
            (asked,) = ask(self.operator, [instance])
            if asked.answer is None:
                raise UsageError(asked.reason)
            key = secrets.token_urlsafe(9)
            shown = Shown(key, patients.key, asked.instance, asked.answer, self.operator.schema, asked.seconds)
            self._answers[key] = shown
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
            return shown

    def held(self, key: str) -> Shown:
        if key not in self._answers:
            raise Unknown("This answer is no longer held.", "Choose the patient again.")
        return self._answers[key]

    def answer_file(self, key: str, name: str) -> File:
        """figure.svg, figure.png, force.csv or parameters.csv of an answer."""
        shown = self.held(key)
        with self._lock:
            made: Mapping[str, Callable[[], bytes]] = {
                "figure.svg": lambda: picture(shown.figure(), "svg"),
                "figure.png": lambda: picture(shown.figure(), "png"),
                "force.csv": lambda: _text(shown.written.force),
                "parameters.csv": lambda: _text(shown.written.parameters),
            }
            return _file(shown, "operator", name, made)

    def start_fit(self, key: str) -> Running:
        with self._lock:
            return self.fits.start(self.held(key))

    def fit_about(self, key: str) -> dict[str, Any]:
        """How far a fit is, and once it is done, how it compares."""
        with self._lock:
            fit = self.fits[key]
            told = fit.about()
            if fit.content is None:
                return told
            fitted = _answer_of(fit)
            said = {name: fit.content[name] for name in ("method", "status", "words", "open")}
            compared = {"agreement": agreement(fit.shown, fitted), "parameters": parameter_rows(fit.shown, fitted)}
            forces = {"dims": fit.content["answer"]["dims"], "forces": fit.content["answer"]["forces"]}
            return {**told, **said, **compared, **forces, "pictures": sorted(fit.pictures)}

    def cancel_fit(self, key: str) -> dict[str, Any]:
        with self._lock:
            fit = self.fits[key]
            fit.cancel()
            return fit.about()

    def fit_file(self, key: str, name: str) -> File:
        """comparison.svg, comparison.png, fit.svg, fit.png, force.csv or parameters.csv of a fit that is done."""
        fit = self.fits[key]
        if fit.content is None:
            raise Unknown("This fit has given nothing yet.", "Wait until it is done.")
        shown, fitted = fit.shown, _answer_of(fit)
        with self._lock:
            made: dict[str, Callable[[], bytes]] = {
                "comparison.svg": lambda: picture(plot_comparison(shown, fitted), "svg"),
                "comparison.png": lambda: picture(plot_comparison(shown, fitted), "png"),
                "force.csv": lambda: _text(written(fitted, shown.instance, shown.schema).force),
                "parameters.csv": lambda: _text(written(fitted, shown.instance, shown.schema).parameters),
            }
            made |= {one: lambda content=content: content for one, content in fit.pictures.items()}  # type: ignore[misc]
            return _file(shown, "fit", name, made)


def _answer_of(fit: Running) -> OperatorAnswer:
    assert fit.content is not None
    return restored(fit.content["answer"], fit.content["kinds"], fit.shown.answer)


def _file(shown: Shown, of: str, name: str, made: Mapping[str, Callable[[], bytes]]) -> File:
    if name not in made:
        raise Unknown(f"There is no {name}.", f"There are: {', '.join(made)}.")
    return File(f"{safe(shown.instance.id)}_{of}_{name}", made[name]())


def _text(content: str) -> bytes:
    # An instance id may hold lone surrogates, which have no UTF-8.
    return content.encode("utf-8", errors="backslashreplace")
