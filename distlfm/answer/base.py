"""The contract of an answer, whoever gives it: a fit, or an operator.

Shapes: `L` forces, `P` outputs, `Q` times, or points of a field; `d` space dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from distlfm.answer import picture, tables
from distlfm.answer.draws import Draws, Functional, Summary, summarise
from distlfm.answer.parameters import Estimated, Parameters, html_table
from distlfm.instance import FloatArray, Instance

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from arviz import InferenceData
    from numpy.typing import NDArray

MOST_ADVICE = 300
NUM_DRAWS = 400
"""Draws that an interval of a functional is made of, unless another number is given."""


@dataclass(frozen=True, repr=False)
class Band:
    """mean, sd, and the central intervals of 68 and 95 %, each of the same shape."""

    mean: FloatArray
    sd: FloatArray
    lower68: FloatArray
    upper68: FloatArray
    lower95: FloatArray
    upper95: FloatArray

    def __repr__(self) -> str:
        return f"<Band of shape {self.mean.shape}: {', '.join(vars(self))}>"


_RECENT: deque[tuple[Answer, object, Draws]] = deque(maxlen=4)
"""Draws that were summarised last, as the next functional is mostly one of the same; none of more than MOST_KEPT."""

MOST_KEPT = 100_000_000
"""Bytes."""


class Answer(ABC):
    """Force, outputs and parameters of one instance, with their uncertainty.

    A new kind of answer has `id`, `force_names`, `output_names`, `estimates`, `instance`, and `advice` (what to know
    before relying on it, empty if there is nothing to say), and fills in the abstract methods. One that does not know
    outputs or has no joint draws raises a `UsageError` that says what does.
    """

    if TYPE_CHECKING:

        @property
        def id(self) -> str: ...
        @property
        def force_names(self) -> tuple[str, ...]: ...
        @property
        def output_names(self) -> tuple[str, ...]: ...
        @property
        def estimates(self) -> Sequence[Estimated]: ...
        @property
        def instance(self) -> Instance | None: ...
        @property
        def advice(self) -> str: ...

    @property
    @abstractmethod
    def times(self) -> FloatArray:
        """Times of force and outputs, [Q]."""

    @property
    @abstractmethod
    def positions(self) -> FloatArray | None:
        """The places of these times, [Q, d] of a field; None of a series."""

    @property
    @abstractmethod
    def force(self) -> Band:
        """The forces at `times`: bands of [L, Q]."""

    @property
    @abstractmethod
    def outputs(self) -> Band:
        """The outputs at `times`, without measurement noise: bands of [P, Q]."""

    @property
    @abstractmethod
    def has_outputs(self) -> bool:
        """Whether `outputs` are known."""

    @property
    @abstractmethod
    def trustworthy(self) -> bool:
        """Whether there is an answer to rely on; `advice` says why not."""

    @abstractmethod
    def draws(
        self,
        count: int = NUM_DRAWS,
        times: Sequence[float] | FloatArray | None = None,
        positions: FloatArray | None = None,
        seed: int = 0,
    ) -> Draws:
        """Draw force, outputs and parameters jointly from the posterior.

        count: number of draws S. times: [Q], by default those of `force`. positions: [Q, d], for a field with times.
        seed: of the draws.

        Returns the draws, a sequence. Raises `UsageError` if an argument is wrong, or there are no joint draws.
        """

    @abstractmethod
    def _headline(self) -> str:
        """What kind of answer it is, in a few words."""

    @property
    def parameters(self) -> Parameters:
        """The parameters by name, with `.to_frame()`."""
        return Parameters(self.estimates)

    def summarise(
        self,
        functional: Functional,
        count: int = NUM_DRAWS,
        times: Sequence[float] | FloatArray | None = None,
        positions: FloatArray | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> Summary:
        """Return the posterior of any number that is made of a draw, with its intervals.

        functional: a function of a `Draw`, such as `lambda draw: draw["p21"].max()`, or a shipped one: `Integral`,
        `PeakTime`, `PeakHeight`, `Exceedance`. count, times, positions, seed: as for `draws`. name: of the summary, by
        default the functional's. Raises `UsageError` as `draws` does, and if no interval can be made of what the
        functional gives. Draws are kept for a while, so that further functionals of the same ones take no time.
        """
        places = [None if one is None else np.asarray(one, dtype=object).tolist() for one in (times, positions)]
        key = repr([count, seed, places])
        kept = next((draws for answer, of, draws in list(_RECENT) if answer is self and of == key), None)
        draws = kept or self.draws(count, times, positions, seed)
        if kept is None and draws.force.nbytes + draws.outputs.nbytes <= MOST_KEPT:
            _RECENT.append((self, key, draws))
        own = replace(draws, force=draws.force.copy(), outputs=draws.outputs.copy())  # a functional may write on them
        return summarise(own, functional, name)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each curve and time: kind, name, time, places of a field, and the band."""
        return tables.to_frame(self)

    def to_xarray(self) -> xr.Dataset:
        """Return bands, parameters and observations with named dimensions.

        Curves are over `time`. Those of a field are over `time`, `x`, … if its points are a lattice, else over `point`.
        """
        return tables.to_xarray(self)

    @property
    def chains(self) -> int:
        """Chains that draws come from, one of each in turn; 1 where draws are independent."""
        return 1

    def to_arviz(self, count: int = NUM_DRAWS, seed: int = 0) -> InferenceData:
        """Return joint draws and observations as ArviZ's `InferenceData`; needs the extra `arviz`.

        count: number of draws; those of a fit by chains are spread evenly over the length of each chain. seed: of the
        draws. Raises `MissingExtra` without ArviZ, and `UsageError` as `draws` does.
        """
        return tables.to_arviz(self, count, seed)

    def plot(self, names: Sequence[str] | None = None, ax: object = None) -> NDArray[np.object_]:
        """Draw forces and outputs with their bands, and the observations; return the axes, an array of matplotlib's.

        names: forces and outputs to draw, by default all. ax: axes of matplotlib to draw into, one for each name, by
        default of a new figure. A field on a line is drawn as means over time and place.
        """
        return picture.plot(self, names, ax)

    def __repr__(self) -> str:
        where = f"{len(self.times)} {'times' if self.positions is None else 'points'}"
        span = f" from {self.times.min():g} to {self.times.max():g}" if len(self.times) else ""
        outputs = f"; outputs {_few(self.output_names)}" if self.has_outputs else ""
        warning = f"; {self.advice}" if self.advice else ""
        warning = warning if len(warning) <= MOST_ADVICE else f"{warning[: MOST_ADVICE - 1]}…"
        return (
            f"<{type(self).__name__} of {self.id!r}: {self._headline()}; {_few(self.force_names)} at {where}{span}"
            f"{outputs}; {len(self.parameters)} parameters{warning}>"
        )

    def _repr_html_(self) -> str:
        advice = f"<p><em>{escape(self.advice)}</em></p>" if self.advice else ""
        head = f"<p><strong>{escape(self.id)}</strong>: {escape(self._headline())}</p>"
        return f"<div>{head}{advice}{picture.picture(self)}{html_table(self.parameters)}</div>"


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
