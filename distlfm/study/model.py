"""The model of a study: an equation, the prior of its force, and a likelihood; it fits data and is saved as YAML."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from distlfm.config import Overrides, apply_overrides, build, read_yaml
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.method import FIELDS, SERIES
from distlfm.inference.model import ForceConfig
from distlfm.instance import Instance
from distlfm.likelihoods import LIKELIHOODS, LikelihoodConfig
from distlfm.likelihoods import Likelihood as Own
from distlfm.mechanisms import System, find_system
from distlfm.mechanisms.build import written_class
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.runtime.reporting import Reporter
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.field.scheme import HOMES
from distlfm.study.parts import Kernel, Likelihood, of_forces
from distlfm.verbs.fit import FitRun, fit

Data = Instance | Sequence[Instance] | Path | str


class Model:
    """An equation with the priors of everything that is unknown in it.

    mechanism: an equation, such as `Transcription(["p21", "mdm2"])`; without names, the data's outputs are taken.
    force: the kernel of the latent force, such as `RBF(lengthscale=LogNormal(2.0, 0.3))`; of several forces each may
    have its own, by their names.
    likelihood: how data scatter, `Gaussian()` by default; or a registered class of your own.
    inference: how a fit is done, by the keys of the section `inference` of a config, such as `{"restarts": 3}`.

    `config` is the same, checked and with all defaults. Raises `UsageError` if a part is not one, or wrong.
    """

    config: FitConfig

    def __init__(
        self,
        mechanism: System | Mapping[str, Any],
        force: Kernel | Mapping[str, Kernel] | ForceConfig | Mapping[str, Any] | None = None,
        likelihood: Likelihood | Own | type[Own] | LikelihoodConfig | Mapping[str, Any] | None = None,
        inference: InferenceConfig | Mapping[str, Any] | None = None,
    ) -> None:
        content: dict[str, Any] = {"verb": "fit", "mechanism": _mechanism(mechanism)}
        sections: dict[str, Any] = {
            "force": _force(force),
            "likelihood": _likelihood(likelihood),
            "inference": inference,
        }
        for name, section in sections.items():
            if section is None:
                continue
            if not isinstance(section, BaseModel | Mapping):
                raise UsageError(f"{name} is {section!r}.", EXAMPLES[name])
            content[name] = _brief(section) if isinstance(section, BaseModel) else dict(section)
        config = build(FitConfig, content, source="Model")
        plugins = tuple(dict.fromkeys(name for home in _homes(config).values() for name in _plugin(home)))
        self.config = config.model_copy(update={"plugins": plugins}) if plugins else config

    @classmethod
    def from_config(
        cls, config: Path | str | Mapping[str, Any] | FitConfig | Model, overrides: Overrides = ()
    ) -> Model:
        """Return the model that a config of `distlfm fit` describes.

        config: the path of its file, a mapping with its content, a config, or another model. overrides: settings to
        change, such as `{"run.seed": 1}`. Data and settings of the run are kept: `Model.from_config(path).fit()` does
        what `distlfm fit path` does. Raises `UsageError` if the file cannot be read, or a key or value is wrong.
        """
        config = config.config if isinstance(config, Model) else config
        if isinstance(config, FitConfig):
            config = {"verb": "fit", **_brief(config)}
        given = isinstance(config, Mapping)
        content = dict(config) if isinstance(config, Mapping) else read_yaml(config)
        if overrides:
            content = apply_overrides(content, overrides)
        made = cls.__new__(cls)
        made.config = build(FitConfig, content, source="config" if given else str(config))
        return made

    def to_config(self) -> dict[str, Any]:
        """Return the content of the config file as a mapping: only what was given is named.

        >>> from distlfm import Transcription
        >>> Model(Transcription(["p21"]), likelihood={"floor": 0.01}).to_config()["likelihood"]
        {'kind': 'gaussian', 'floor': 0.01}
        """
        return {"verb": "fit", **_brief(self.config)}

    def save(self, path: Path | str) -> Path:
        """Write the config file, which `distlfm fit` and `Model.from_config` read.

        path: of the file; one that is there is replaced. Returns the path. Raises `UsageError` if it cannot be written.
        """
        path = Path(path)
        try:
            path.write_text(yaml.safe_dump(self.to_config(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"Cannot write {path}: {error.strerror}.", "Check the folder and its permissions."
            ) from None
        return path

    def fit(
        self,
        data: Data | None = None,
        out: Path | str | None = None,
        *,
        executor: Literal["auto", "serial", "ray"] | None = None,
        workers: int | None = None,
        seed: int | None = None,
        overrides: Overrides = (),
        reporter: Reporter | None = None,
    ) -> FitRun:
        """Infer the forces of instances, and return one result for each: `run[0]`, `run["sample-3"]`.

        data: what `read_frame` and `read_xarray` give, instances, or the path of a file; by default the config's.
        out: a folder to write results and a report to; a run that was stopped goes on there when it is repeated.
        executor: with `out`, who works: `ray` on all cores, or `serial`. workers: the largest number of processes, by
        default one per core. seed: everything random follows from it, by default 0. overrides: keys of the config,
        such as `{"inference.restarts": 3}`. reporter: where progress and warnings go, by default nowhere.

        Raises `UsageError` if an argument or the data are wrong, `WorkError` if every fit failed, and, with `out`,
        `Stopped` if a signal ended it.
        """
        where = {"dir": None if out is None else str(out), "executor": executor, "workers": workers, "seed": seed}
        run = {name: value for name, value in where.items() if value is not None}
        content = self.to_config()
        content["run"] = {**content.get("run", {}), **run}
        config = build(FitConfig, apply_overrides(content, overrides), source="Model.fit")
        if config.run.dir is None and config.run.executor == "ray":
            raise UsageError("Ray works on runs that are kept in a folder.", 'Give it: model.fit(data, out="runs/x").')
        if config.run.dir is None and workers is not None and workers > 1:
            raise UsageError(
                f"{workers} workers share a run that is kept in a folder, and this one is not.",
                'Give it, model.fit(data, out="runs/x", workers=2), or leave workers out.',
            )
        return fit(self._workable(config), data, reporter=reporter)

    def simulate(self, instances: int = 1, **options: Any) -> list[Instance]:
        """Draw instances from the model, and return them with their truth.

        instances: how many. options: keys of `distlfm simulate`, such as `points=24`, `stop=12.0` or `seed=1`. Raises
        `UsageError` if an option is wrong, or the model cannot be drawn from.
        """
        if "times" in options:
            raise UsageError(
                "simulate observes at even times, and takes no list of them.",
                "Give points=24, start=0.0 and stop=12.0; distlfm.simulation.instances.simulate takes any times.",
            )
        content = {key: value for key, value in self.to_config().items() if key in SHARED}
        return simulate_from(build(SimulateConfig, {**content, "instances": instances, **options}, source="simulate"))

    def _workable(self, config: FitConfig) -> FitConfig:
        """The same on this process alone where other ones could not know the equation."""
        here = [name for name, home in _homes(config).items() if home == "__main__"]
        if not here or config.run.dir is None or config.run.executor == "serial":
            return config
        if config.run.executor == "ray":
            raise UsageError(
                f"{here[0]} is defined in the notebook or program itself, where workers of Ray do not find it.",
                'Put it into a file of its own and import it, or use executor="serial".',
            )
        return config.changed("run", executor="serial")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Model):
            return NotImplemented
        return self.config.model_dump(mode="json") == other.config.model_dump(mode="json")

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        text = yaml.safe_dump(self.to_config(), sort_keys=False, allow_unicode=True)
        return f"<p>{escape(repr(self))}</p><pre>{escape(text)}</pre>"

    def __repr__(self) -> str:
        config = self.config
        outputs = ", ".join(config.mechanism.get("outputs", ())) or "the data's outputs"
        priors = ", ".join([*config.force.priors, *(f"{name} known" for name in config.force.fixed)])
        force = f"{config.force.kernel.kind} force" + (f" ({priors})" if priors else "")
        return f"<Model of {config.mechanism['kind']}: {outputs}; {force}; {config.likelihood.kind} likelihood>"


EXAMPLES = {
    "force": "Give a kernel, such as RBF(lengthscale=LogNormal(2.0, 0.3)); a kernel object of gpytorch is for "
    "distlfm.inference.model.Model.",
    "likelihood": "Give one, such as Gaussian() or Poisson().",
    "inference": 'Give a mapping, such as {"restarts": 3}.',
}
SHARED = ("mechanism", "force", "likelihood", "plugins")


def _mechanism(given: System | Mapping[str, Any]) -> dict[str, Any]:
    """The section `mechanism` of an equation: the options that were given."""
    if isinstance(given, System):
        whole = given.options.model_dump(mode="json")
        return {name: whole[name] for name in whole if name == "kind" or name in given.options.model_fields_set}
    if isinstance(given, Mapping):
        return dict(given)
    made = f'{given.__name__}(["name"])' if isinstance(given, type) else 'Transcription(["p21", "mdm2"])'
    raise UsageError(f"The mechanism is {given!r}.", f"Give an equation with its outputs, such as {made}.")


def _likelihood(given: object) -> Any:
    """The section `likelihood` of what is one; anything else as it is."""
    if isinstance(given, type) and issubclass(given, Own):
        kind = next((kind for kind, one in LIKELIHOODS.items() if one is given), None)
        if kind is None:
            name = given.__name__
            raise UsageError(f"{name} has no name.", f'Write @register_likelihood("{name.lower()}") above it.')
        return {"kind": kind}
    return given.to_config() if isinstance(given, Likelihood) else given.options if isinstance(given, Own) else given


def _homes(config: FitConfig) -> dict[str, str]:
    """What a config names, and the module that registers it."""
    system, method = find_system(config.mechanism["kind"]), config.inference.method
    classes = [written_class(system), LIKELIHOODS[config.likelihood.kind], SERIES.get(method), FIELDS.get(method)]
    scheme = str(config.mechanism.get("scheme"))
    return {one.__name__: one.__module__ for one in classes if one is not None} | {
        f"The scheme {name!r}": home for name, home in HOMES.items() if name == scheme
    }


def _plugin(module: str) -> list[str]:
    """A user's own module, as a config names it; nothing of one that is not."""
    if module == "__main__" or module.startswith("distlfm."):
        return []
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    beside = Path(f"{module}.py")
    if "." in module or file.suffix != ".py" or (beside.is_file() and beside.samefile(file)):
        return [module]
    return [str(file)]


def _force(given: Kernel | Mapping[str, Any] | ForceConfig | None) -> ForceConfig | Mapping[str, Any] | None:
    if isinstance(given, Kernel):
        return given.to_config()
    if isinstance(given, Mapping) and given and all(isinstance(one, Kernel) for one in given.values()):
        return of_forces(given)
    return given


def _brief(model: BaseModel) -> dict[str, Any]:
    """The fields of a config that were set, as plain data; kinds are always named."""
    whole = model.model_dump(mode="json")
    found = {}
    for name in type(model).model_fields:
        if name != "kind" and name not in model.model_fields_set:
            continue
        value = getattr(model, name)
        found[name] = _brief(value) if isinstance(value, BaseModel) and name != "settled" else whole[name]
    return found
