"""The parameters of an answer as a mapping from names to estimates with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NoReturn

from distlfm.config import nearest
from distlfm.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("mean", "sd", "lower68", "upper68", "lower95", "upper95")
MAX_ROWS = 40


@dataclass(frozen=True)
class Estimated:
    """One parameter in natural units: its mean, standard deviation and central intervals of 68 and 95 %.

    mean: of an operator, the median where the parameter is learned by its logarithm.
    """

    name: str
    kind: str
    mean: float
    sd: float
    lower68: float
    upper68: float
    lower95: float
    upper95: float


class Parameters(dict[str, Estimated]):
    """Estimates by name, such as `parameters["decay[p21]"].mean`, in the order of the model.

    estimates: one for each element of a parameter. A name that is not there raises `UnknownParameter`.
    """

    def __init__(self, estimates: Sequence[Estimated]) -> None:
        super().__init__({one.name: one for one in estimates})

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownParameter(f"There is no parameter {name!r}.", nearest(str(name), list(self)))

    def __repr__(self) -> str:
        shown = [f"{one.name} {one.mean:.3g} ± {one.sd:.2g}" for one in list(self.values())[:6]]
        more = [f"{len(self) - 6} more"] if len(self) > 6 else []
        return f"<{len(self)} parameters: {', '.join(shown + more)}>" if len(self) else "<no parameters>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each parameter: kind, mean, sd, both intervals, and the shrinkage where it is known.

        shrinkage: 0 where the data say nothing, 1 where they say all.
        """
        import pandas

        columns = ("kind", *COLUMNS, "shrinkage")
        rows = {one.name: {name: getattr(one, name) for name in columns if hasattr(one, name)} for one in self.values()}
        frame: pd.DataFrame = pandas.DataFrame.from_dict(rows, orient="index")
        frame.index.name = "parameter"
        return frame

    def _repr_html_(self) -> str:
        return html_table(self)


class UnknownParameter(UsageError, KeyError):
    """A name that no parameter has; a `KeyError`, as mappings raise."""

    def __str__(self) -> str:
        return f"{self.cause} {self.fix}"


def html_table(parameters: Mapping[str, Estimated]) -> str:
    """Parameters with their intervals as an HTML table, at most MAX_ROWS of them."""
    rows = [
        f"<tr><td>{escape(one.name)}</td><td>{_number(one.mean)}</td><td>{_number(one.sd)}</td>"
        f"<td>{_number(one.lower95)} … {_number(one.upper95)}</td></tr>"
        for one in list(parameters.values())[:MAX_ROWS]
    ]
    left_out = len(parameters) - len(rows)
    more = f"<p>{left_out} more parameters: <code>parameters.to_frame()</code></p>" if left_out else ""
    head = "<tr><th>parameter</th><th>mean</th><th>sd</th><th>95 %</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "–"
