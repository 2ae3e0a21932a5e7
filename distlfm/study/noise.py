"""Likelihoods: how data scatter around the outputs."""

from __future__ import annotations

from typing import Any, Literal

from distlfm.config import build
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Uniform

Prior = LogNormal | Normal | Uniform | HalfNormal


class Likelihood:
    """A likelihood with its options, as the section `likelihood` of a config has them."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
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
    the level of the signal.
    """

    def __init__(
        self,
        noise: Prior | Literal["learned", "given", "both"] = "learned",
        *,
        prior: Prior | None = None,
        shared: bool | None = None,
        floor: float | None = None,
        relative: Prior | None = None,
    ) -> None:
        how, prior = (noise, prior) if isinstance(noise, str) else (None, noise)
        how = None if how == "learned" else how
        super().__init__(
            "gaussian", {"noise": how, "prior": prior, "shared": shared, "floor": floor, "relative": relative}
        )


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
