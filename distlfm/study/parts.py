"""The parts of a model besides its equation: kernels of the force, and likelihoods.

A kernel has the priors of its parameters, `RBF(lengthscale=LogNormal(2.0, 0.3))`. A parameter is given as a prior or,
where it is known, as a number. For a field, a mapping gives each dimension its own:
`lengthscale={"t": LogNormal(1.0), "x": 0.2}`. What is left out has the equation's default prior. Of several forces each
may have a kernel of its own: `Model(equation, force={"meal": RBF(...), "insulin": RBF(...)})`.
"""

from __future__ import annotations

import math
from abc import ABC
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Literal

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.gp.kernels import VARIANCE
from distlfm.inference.model import ForceConfig
from distlfm.likelihoods import LikelihoodConfig
from distlfm.likelihoods.drift import DriftConfig
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Uniform

Prior = LogNormal | Normal | Uniform | HalfNormal
PRIORS = ("prior", "relative", "dispersion")
Given = Prior | float | Mapping[str, Prior | float]


class Kernel(ABC):
    """The kernel of a force: one of the shipped ones, or a sum or product of them, `RBF() + Periodic()`.

    >>> RBF() * Periodic(period_length=24.0)
    Product(RBF(), Periodic(period_length=24.0))
    """

    kind: ClassVar[str]
    variance: Given | None
    own: Mapping[str, Given | None]
    parts: tuple[Kernel, ...] = ()

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other)

    def kernel(self) -> dict[str, Any]:
        """Return the section `force.kernel` of a config, as a mapping."""
        return {"kind": self.kind}

    def to_config(self) -> ForceConfig:
        """Return the section `force` of a config."""
        priors: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        leaves = list(self._leaves())
        count = Counter(name for _, name, _ in leaves)
        for place, name, given in [*leaves, ((), VARIANCE, self.variance)]:
            if given is None:
                continue
            key = name if count[name] < 2 else ".".join([*place, name])
            known, assumed = _parted(type(self).__name__, name, given)
            priors |= {key + element: prior for element, prior in assumed.items()}
            if known is not None:
                fixed[key] = known
        content = {"kernel": self.kernel(), "priors": priors, "fixed": fixed}
        return build(ForceConfig, {key: value for key, value in content.items() if value}, source="force")

    def _leaves(self, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Given | None]]:
        """Place, name and value of every parameter but the variance."""
        yield from ((place, name, given) for name, given in self.own.items())
        for i, part in enumerate(self.parts):
            yield from part._leaves((*place, str(i)))

    def __repr__(self) -> str:
        shown = {**self.own, VARIANCE: self.variance}
        named = (f"{name}={given!r}" for name, given in shown.items() if given is not None)
        return f"{type(self).__name__}({', '.join([*map(repr, self.parts), *named])})"


def of_forces(kernels: Mapping[str, Kernel]) -> ForceConfig:
    """Return the section `force` of a config in which each force has a kernel's priors of its own."""
    first, *others = kernels.values()
    if any(one.kernel() != first.kernel() for one in others):
        raise UsageError(
            f"The forces {', '.join(kernels)} have kernels of different kinds.",
            "Give all the same kind; their priors may differ.",
        )
    content: dict[str, Any] = {"kernel": first.kernel(), "priors": {}, "fixed": {}}
    for force, kernel in kernels.items():
        section = kernel.to_config()
        for part in ("priors", "fixed"):
            content[part] |= {f"{force}.{name}": one for name, one in getattr(section, part).items()}
    return build(ForceConfig, {key: value for key, value in content.items() if value}, source="force")


def _parted(kernel: str, name: str, given: Given) -> tuple[Any, dict[str, Prior]]:
    """What is known of a parameter, and priors by "" or "[t]" of what is not."""
    if isinstance(given, Mapping):
        known = {label: value for label, value in given.items() if not isinstance(value, Prior)}
        for label, value in known.items():
            _number(kernel, f"{name}[{label}]", value)
        return known or None, {f"[{label}]": value for label, value in given.items() if isinstance(value, Prior)}
    if isinstance(given, Prior):
        return None, {"": given}
    return _number(kernel, name, given), {}


def _number(kernel: str, name: str, given: object) -> float:
    number = float(given) if isinstance(given, Real) and not isinstance(given, bool) else None
    if number is None or not 0 < number < math.inf:
        what = "neither a prior nor a number" if number is None else "not a positive number"
        raise UsageError(
            f"{kernel}: {name} is {given!r}, which is {what}.",
            f"Write {name}=LogNormal(2.0, 0.3), or {name}=2.0 where it is known.",
        )
    return number


class _Stationary(Kernel):
    """A kernel of the distance alone."""

    def __init__(
        self,
        lengthscale: Given | None = None,
        variance: Given | None = None,
        *,
        ard: bool = True,
        dims: Sequence[int] | None = None,
    ) -> None:
        self.own, self.variance = {"lengthscale": lengthscale}, variance
        self.ard, self.dims = ard, dims

    def kernel(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.ard else {"ard": False}
        return {"kind": self.kind, **more, **({} if self.dims is None else {"dims": tuple(self.dims)})}


class RBF(_Stationary):
    """The squared-exponential kernel: forces that are smooth.

    lengthscale: over what distance the force stays alike, in the unit of time or position. variance: the force's size
    squared. Each is a prior, a known number, or one of these for each dimension; by default the equation's prior. ard:
    whether a field has a lengthscale for each dimension, or one for all. dims: the dimensions that the kernel sees,
    where 0 is time; by default all.
    """

    kind = "rbf"


class Matern12(_Stationary):
    """The Matérn kernel of ν = ½: forces that are continuous and rough.

    lengthscale, variance, ard, dims: as for `RBF`.
    """

    kind = "matern12"


class Matern32(_Stationary):
    """The Matérn kernel of ν = 3/2: forces that have a slope.

    lengthscale, variance, ard, dims: as for `RBF`.
    """

    kind = "matern32"


class Matern52(_Stationary):
    """The Matérn kernel of ν = 5/2: forces that have a curvature; long series are fitted by a filter.

    lengthscale, variance, ard, dims: as for `RBF`.
    """

    kind = "matern52"


class Periodic(_Stationary):
    """The periodic kernel: forces that repeat themselves.

    period_length: after what time they do; a prior or a known number. lengthscale: a pure number; the smaller it
    is, the quicker the force changes within a period. variance, ard, dims: as for `RBF`.
    """

    kind = "periodic"

    def __init__(
        self,
        period_length: Given | None = None,
        lengthscale: Given | None = None,
        variance: Given | None = None,
        *,
        ard: bool = True,
        dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, variance, ard=ard, dims=dims)
        self.own = {**self.own, "period_length": period_length}


class _Composite(Kernel):
    """Kernels put together. They share one variance, which the whole has: `Sum(RBF(), Periodic(), variance=…)`."""

    def __init__(self, *parts: Kernel, variance: Given | None = None) -> None:
        self.parts, self.variance, self.own = parts, variance, {}
        for part in parts:
            if not isinstance(part, Kernel):
                raise UsageError(f"{part!r} is not a kernel.", "Give kernels, such as RBF() and Periodic().")
            if part.variance is not None:
                name = type(self).__name__
                raise UsageError(
                    f"The parts of a {self.kind} share one variance, and {type(part).__name__} has its own.",
                    f"Give it to the whole: {name}({type(part).__name__}(), …, variance=…).",
                )

    def kernel(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": [part.kernel() for part in self.parts]}


class Sum(_Composite):
    """The sum of kernels: forces that are sums of independent ones. Also written `RBF() + Periodic()`.

    parts: two kernels or more, without a variance of their own. variance: the force's size squared, a prior or a known
    number. Raises `UsageError` if a part is not a kernel, or has a variance.
    """

    kind = "sum"


class Product(_Composite):
    """The product of kernels. Also written `RBF() * Periodic()`.

    parts, variance: as for `Sum`.
    """

    kind = "product"


class Likelihood:
    """A likelihood with its options, as the section `likelihood` of a config has them.

    kind: its name in a config. options: its other keys, by name; those that are None are left to their defaults. Raises
    `UsageError` if an option is wrong.
    """

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        for name, one in options.items():
            if name in PRIORS and isinstance(one, Real) and not isinstance(one, bool):
                raise UsageError(
                    f"{type(self).__name__}: {name} is the number {one}, and it takes a prior.",
                    f"Write LogNormal({one}, 0.3) if it is about that. Known variances come with the data, and are "
                    'taken by Gaussian("given").',
                )
        self._options = {"kind": kind, **{name: one for name, one in options.items() if one is not None}}
        self._config = build(LikelihoodConfig, self._options, source=type(self).__name__)

    def to_config(self) -> LikelihoodConfig:
        """Return the section `likelihood` of a config."""
        return self._config

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={given!r}" for name, given in self._options.items() if name != "kind")
        return f"{type(self).__name__}({inner})"


class Gaussian(Likelihood):
    """Normal noise.

    noise: the prior of its standard deviation, learned for each output; or `"given"`, the variances that come with the
    data; or `"both"`, given, and a learned one on top, whose prior is `prior`. shared: learn one for all outputs.
    floor: no measurement is believed more exactly than this. relative: the prior of a share by which noise grows with
    the level of the signal. drift: an error that wanders beside the white noise, as a `DriftConfig` or a mapping of its
    `kind`, `size` and `time`; False for none where the equation suggests one.

    >>> Gaussian(HalfNormal(0.1), floor=0.01)
    Gaussian(prior=HalfNormal(kind='halfnormal', scale=0.1), floor=0.01)
    """

    def __init__(
        self,
        noise: Prior | Literal["learned", "given", "both"] = "learned",
        *,
        prior: Prior | None = None,
        shared: bool | None = None,
        floor: float | None = None,
        relative: Prior | None = None,
        drift: DriftConfig | dict[str, Any] | Literal[False] | None = None,
    ) -> None:
        how, prior = (noise, prior) if isinstance(noise, str) else (None, noise)
        how = None if how == "learned" else how
        given = {"noise": how, "prior": prior, "shared": shared, "floor": floor, "relative": relative, "drift": drift}
        super().__init__("gaussian", given)


class Poisson(Likelihood):
    """Counts whose expected values are the outputs."""

    def __init__(self) -> None:
        super().__init__("poisson", {})


class NegativeBinomial(Likelihood):
    """Counts that scatter more than Poisson's: their variance is mean + dispersion · mean².

    dispersion: its prior, for each output. shared: learn one for all outputs.
    """

    def __init__(self, dispersion: Prior | None = None, *, shared: bool | None = None) -> None:
        super().__init__("negative_binomial", {"dispersion": dispersion, "shared": shared})
