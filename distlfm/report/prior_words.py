"""Priors of a model in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from distlfm.gp.kernels import KernelConfig
from distlfm.inference.model import LikelihoodConfig, Model
from distlfm.mechanisms import Parameter
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Prior


def prior_words(model: Model) -> list[str]:
    """A sentence each on the priors of the mechanism's parameters, of the forces, and of the noise."""
    kinds = {kind: [one for one in model.space.parameters if one.kind == kind] for kind in ("kernel", "noise")}
    own = [one for one in model.space.parameters if one.kind not in kinds]
    first = f"{model.system.force_names[0]}."  # what is said of one force holds for all
    kernel = [_parameter(one, one.name.removeprefix(first)) for one in kinds["kernel"] if one.name.startswith(first)]
    found = [f"Parameters: {_listed([_parameter(one, one.name) for one in own])}."] if own else []
    found.append(f"{', '.join(model.system.force_names)}: {kernel_words(model.force.kernel)}; {_listed(kernel)}.")
    return [*found, _noise(model.likelihood, kinds["noise"])]


def kernel_words(kernel: KernelConfig) -> str:
    """Which kernel it is."""
    if kernel.parts:
        return f"the {kernel.kind} of {' and '.join(f'({kernel_words(part)})' for part in kernel.parts)}"
    seen = "" if kernel.dims is None else f" of the inputs {', '.join(map(str, kernel.dims))}"
    return f"{kernel.kind} kernel{seen}"


def _noise(options: LikelihoodConfig, parameters: Sequence[Parameter]) -> str:
    said = [_parameter(one, one.name.replace("_", " ")) for one in parameters]
    if options.kind != "gaussian":
        return f"Noise: {_listed([options.kind.replace('_', ' '), *said])}."
    if options.noise != "learned":
        said.insert(0, "variances as given with the data")
    if said and options.shared:
        said.append("one for all outputs")
    if options.floor:
        said.append(f"never below {options.floor:g}")
    return f"Noise: {_listed([one.removeprefix('noise ') for one in said])}."


def _parameter(one: Parameter, name: str) -> str:
    known = [f"{name}[{key}] = {x:g}" if len(one.labels) > 1 else f"{name} = {x:g}" for key, x in one.fixed.items()]
    return _listed([*([f"{name} {_prior(one.prior)}"] if one.free else []), *known])


def _prior(prior: Prior) -> str:
    if isinstance(prior, LogNormal):
        return f"lognormal (median {prior.median:g}, spread {prior.spread:g})"
    if isinstance(prior, Normal):
        return f"normal (mean {prior.mean:g}, sd {prior.sd:g})"
    if isinstance(prior, HalfNormal):
        return f"halfnormal (scale {prior.scale:g})"
    return f"uniform ({prior.low:g} to {prior.high:g})"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
