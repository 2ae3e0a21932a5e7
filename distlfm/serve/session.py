"""All that one `distlfm serve` holds: the operator, patients, answers and fits. Nothing of it outlives the session."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from distlfm.errors import UsageError
from distlfm.fleets.fit_job import safe
from distlfm.lfo import Operator
from distlfm.queries.asking import ask, find_checkpoint, mark
from distlfm.report.page import picture
from distlfm.runs.settings import ServeConfig
from distlfm.serve.answers import Shown, Written, agreement, parameter_rows, plot_comparison, restored, written
from distlfm.serve.fits import Fits, fit_options
from distlfm.serve.sources import Library, RecentValues, UnknownKey
from distlfm.version import __version__

MOST_ANSWERS = 32
"""Answers that are held; the oldest is forgotten first."""

FIGURES = {"operator": "figure", "fit": "comparison"}
Pictures = Mapping[str, bytes]
Result = TypeVar("Result")


class Session:
    """Readers, the network and matplotlib's settings are used by one thread at a time: requests go through `alone`."""

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        checkpoint = find_checkpoint(config.checkpoint)
        self.config = config
        self.operator = Operator.load(checkpoint)
        self.mark = mark(checkpoint)
        self.folder = folder
        self.library = Library(config, self.operator.schema, folder)
        self.fits = Fits(folder, fit_options(config.fit, self.operator, config.plugins))
        self._answers = RecentValues[Shown](MOST_ANSWERS, "answer", "Choose the patient again.")
        self._lock = threading.RLock()

    def alone(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Do what a request asks for while no other one is answered."""
        with self._lock:
            return call(*arguments, **named)

    def open(self) -> Session:
        """Read the data that were named at the start."""
        self.library.open_named()
        return self

    def close(self) -> None:
        self.fits.close()

    def about(self) -> dict[str, Any]:
        """What the operator takes and gives."""
        schema = self.operator.schema
        return {
            "version": __version__,
            "checkpoint": self.mark,
            "mechanism": schema.mechanism.get("kind"),
            "outputs": schema.outputs,
            "forces": schema.forces,
            "dims": [{"name": dim.name, "start": dim.start, "stop": dim.stop} for dim in schema.dims],
            "units": dict(schema.units),
            "max_megabytes": self.config.max_megabytes,
            **self.fits.about(),
            "notices": self.operator.notices,
            "sources": [one.about() for one in self.library],
        }

    def patients(self, key: str, search: str) -> dict[str, Any]:
        """Names of a source that hold a text."""
        return self.library[key].listed(search)

    def forget(self, key: str) -> None:
        """Let go of a dropped file, and of all that was answered of it."""
        self.library.forget(key)
        for name in [name for name, one in self._answers.items() if one.source == key]:
            del self._answers[name]
        self.fits.forget(key)

    def answer(self, source: str, place: int) -> Shown:
        """Ask the operator about a patient."""
        schema = self.operator.schema
        instance = self.library[source].instance(place, schema.outputs)
        (asked,) = ask(self.operator, [instance])
        if asked.answer is None:
            raise UsageError(asked.reason)
        key = secrets.token_urlsafe(9)
        return self._answers.keep(key, Shown(key, source, asked.instance, asked.answer, schema, asked.seconds))

    def answer_file(self, key: str, name: str) -> tuple[str, bytes]:
        """Name and content of figure.svg, figure.png, force.csv or parameters.csv of an answer."""
        shown = self._answers[key]
        return _file(shown, "operator", name, shown.figure, lambda: shown.written, {})

    def start_fit(self, key: str) -> dict[str, Any]:
        return self.fits.start(self._answers[key]).about()

    def fit_about(self, key: str) -> dict[str, Any]:
        """How far a fit is, and once it is done, how it compares."""
        fit = self.fits[key]
        state, content = fit.about(), fit.content
        if content is None:
            return state
        fitted = restored(content["answer"], content["kinds"], fit.shown.answer)
        words = {name: content[name] for name in ("method", "status", "words", "open")}
        compared = {"agreement": agreement(fit.shown, fitted), "parameters": parameter_rows(fit.shown, fitted)}
        forces = {"dims": content["answer"]["dims"], "forces": content["answer"]["forces"]}
        return {**state, **words, **compared, **forces, "pictures": sorted(fit.pictures)}

    def cancel_fit(self, key: str) -> dict[str, Any]:
        self.fits[key].cancel()
        return self.fits[key].about()

    def fit_file(self, key: str, name: str) -> tuple[str, bytes]:
        """The same of a fit that is done: comparison.svg or .png, force.csv, parameters.csv, fit.svg or .png."""
        fit = self.fits[key]
        if fit.content is None:
            raise UnknownKey("This fit has given nothing yet.", "Wait until it is done.")
        shown, fitted = fit.shown, restored(fit.content["answer"], fit.content["kinds"], fit.shown.answer)
        figure, files = partial(plot_comparison, shown, fitted), partial(written, fitted, shown.instance, shown.schema)
        return _file(shown, "fit", name, figure, files, fit.pictures)


def _file(
    shown: Shown, of: str, name: str, figure: Callable[[], Figure], files: Callable[[], Written], pictures: Pictures
) -> tuple[str, bytes]:
    """Name and content of a file of an operator's answer or a fit: its figure, a table, or one of the pictures."""
    stem, _, form = name.rpartition(".")
    known = [*(f"{FIGURES[of]}.{form}" for form in ("svg", "png")), "force.csv", "parameters.csv", *pictures]
    if name not in known:
        raise UnknownKey(f"There is no {name}.", f"There are: {', '.join(known)}.")
    if name in pictures:
        content = pictures[name]
    elif form == "csv":  # an instance id may hold lone surrogates, which have no UTF-8
        content = getattr(files(), stem).encode("utf-8", errors="backslashreplace")
    else:
        content = picture(figure(), form)
    return f"{safe(shown.instance.id)}_{of}_{name}", content
