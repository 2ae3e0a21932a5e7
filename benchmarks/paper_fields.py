"""The paper's own software (alfi) on the paper's fields: by its scripts' settings, and scored as ours is.

alfi takes each step of each draw through FEniCS and a tape of dolfin-adjoint, by a package that PyPI does not have.
Here the same elements (linear, in space), the same steps (backward Euler, one an observed interval) and the same zero
boundary are solved by torch: the same numbers, in minutes. The rest is alfi's: bound, draws, slopes, optimisers. Its
figures have no goals: they stand beside ours in docs/paper.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gpytorch
import numpy as np
import torch
from scipy.stats.qmc import LatinHypercube
from torch import Tensor

from benchmarks.goals import at_least
from benchmarks.lfo_shared import say
from benchmarks.paper_software import VERSION, part, software
from benchmarks.pde import fitted
from distlfm.data import catalog
from distlfm.inference.findings.residuals import structure
from distlfm.inference.findings.scores import q2
from distlfm.instance import BoolArray, FloatArray, Instance

SHARE = 0.3
"""Of the points, as in the paper."""

MEAN_AND_WORST = (("mean", np.mean), ("worst", np.min))


def run(quick: bool = False) -> dict[str, Any]:
    """The only goal is that every split was fitted; one of the toy takes alfi a quarter of an hour."""
    found: dict[str, Any] = {}
    with software():
        for name, field, setting, splits in (("knirps", _knirps(), KNIRPS, 5), ("toy", _toy(), TOY, 3)):
            rows = []
            for seed in range(1 if quick else splits):
                rows.append(_scores(field, fit_field(field, setting, seed, 5 if quick else None)))
                say(f"alfi {VERSION}, {name}, split {seed}: {rows[-1]}")
            found[name] = {"splits": rows, **{how: _each(rows, do) for how, do in MEAN_AND_WORST}}
    count = sum(len(one["splits"]) for one in found.values())
    figures = {"splits that were fitted": at_least(count, 2 if quick else 8)}
    return {"figures": figures, "alfi": VERSION, **found, "toy, by distlfm": _ours(range(1 if quick else 5))}


def _ours(seeds: range) -> dict[str, Any]:
    """The released toy with decay and diffusion learned, as alfi learns them."""
    free = "mechanism.fixed={sensitivity: 1.0}"
    names = ("output_q2", "output_coverage_68", "latent_q2", "latent_coverage_68")
    rows, flags = [], 0
    for seed in seeds:
        result, figures, _ = fitted("reaction_diffusion_toy", f"data.split_seed={seed}", free)
        noticed = structure(result)
        flags += noticed is not None and noticed.flagged
        rows.append(figures)
    found = {how: {name: float(do([row[name] for row in rows])) for name in names} for how, do in MEAN_AND_WORST}
    return {**found, "splits whose misfit is noticed": flags}


def _each(rows: list[dict[str, Any]], how: Any) -> dict[str, float]:
    return {name: float(how([row[name] for row in rows])) for name in rows[0] if "Q²" in name or "%" in name}


def _scores(field: Field, found: FoundField) -> dict[str, Any]:
    """Output at the points that were not shown and force at all, of the last epoch; and the scripts' own."""
    rest = ~found.shown
    mean, true = found.force - found.force.mean(), field.force - field.force.mean()
    fitted = float(mean @ true / (mean @ mean)) * mean
    return {
        "output Q²": q2(found.output[rest], field.output[rest]),
        "output within 68 %": float((np.abs(found.output - field.output) <= found.output_sd)[rest].mean()),
        "force Q²": q2(found.force, field.force),
        "force Q², scale and mean by the truth": q2(fitted, true),
        "force within 68 %": float((np.abs(found.force - field.force) <= found.force_sd).mean()),
        **{f"{name}, best epoch": value for name, value in found.best.items()},
        "rates": found.rates,
        "seconds": found.seconds,
    }


def _toy() -> Field:
    (one,) = catalog.load("reaction_diffusion_toy").instances
    return _field(one)


def _knirps() -> Field:
    """Both scaled by the mRNA's mean and deviation, as alfi's reader does."""
    (one,) = catalog.load("kni").instances
    field = _field(one)
    mean, sd = field.force.mean(), field.force.std()
    return Field(field.times, field.positions, (field.force - mean) / sd, (field.output - mean) / sd)


@dataclass(frozen=True)
class Field:
    """Times and positions, force and output, each [N], ordered by time and then by position."""

    times: FloatArray
    positions: FloatArray
    force: FloatArray
    output: FloatArray

    @property
    def steps(self) -> int:
        return len(np.unique(self.times)) - 1


@dataclass(frozen=True)
class Setting:
    """What the scripts say of a field: rates to start from, whether they are learned, and how long to train."""

    lengthscale: float
    rates: tuple[float, float, float]
    learned: bool
    zero_mean: bool
    clamp: bool
    epochs: int


TOY = Setting(0.2, (1.0, 0.2, 0.05), learned=True, zero_mean=False, clamp=False, epochs=180)
KNIRPS = Setting(10.0, (0.0783, 0.0770, 0.0125), learned=False, zero_mean=True, clamp=True, epochs=150)


@dataclass(frozen=True)
class FoundField:
    """Means and standard deviations [N] after the last epoch, which points were shown, and the scripts' own scores.

    Those are of the epoch that is best by the truth, over all points, those that were shown among them.
    """

    force: FloatArray
    force_sd: FloatArray
    output: FloatArray
    output_sd: FloatArray
    shown: BoolArray
    best: dict[str, float]
    rates: dict[str, float]
    seconds: float


def fit_field(field: Field, setting: Setting, seed: int, epochs: int | None = None) -> FoundField:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    start = time.perf_counter()
    data = _Data(field)
    model = _model(field, setting, seed)
    shown = torch.zeros(len(field.times), dtype=torch.bool)
    shown[torch.randperm(len(shown))[: int(SHARE * len(shown))]] = True
    trainer = part("trainers").PDETrainer(
        model,
        _optimisers(model, int(shown.sum())),
        data,
        clamp=setting.clamp,
        train_mask=shown,
        lf_target=data.orig_data.t(),
    )
    trainer.plot_outputs = False
    _match_slopes(model, trainer, data, shown, 80 if epochs is None else epochs)
    trainer.train(epochs or setting.epochs, report_interval=1000)
    with torch.no_grad():
        force, output = model.gp_model(trainer.tx.t()), model(trainer.tx)
    best = {
        "force Q²": float(trainer.mrna_q2_best),
        "output Q²": float(trainer.prot_q2_best),
        "force within 68 %": float(trainer.cia[0]),
        "output within 68 %": float(trainer.cia[1]),
    }
    rates = [float(part("utilities.torch").softplus(one.detach())) for one in model.fenics_parameters]
    bands = [force.mean, force.variance.sqrt(), output.mean, output.variance.sqrt()]
    return FoundField(
        *(one.detach().numpy().reshape(-1) for one in bands),
        shown.numpy(),
        best,
        dict(zip(("sensitivity", "decay", "diffusion"), rates, strict=True)),
        time.perf_counter() - start,
    )


def _field(one: Instance) -> Field:
    truth = one.truth
    assert one.positions is not None
    assert truth is not None
    assert truth.force is not None
    order = np.lexsort((one.positions[:, 0], one.times))
    columns = (one.times, one.positions[:, 0], truth.force[0], one.values[0])
    return Field(*(column[order] for column in columns))


class _Data:
    """A field in the shape that alfi's trainers read."""

    num_outputs, disc = 1, 1

    def __init__(self, field: Field) -> None:
        self.num_discretised = field.steps
        columns = (field.times, field.positions, field.force, field.output)
        self.orig_data = torch.from_numpy(np.stack(columns))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index:
            raise IndexError(index)
        return self.orig_data[:2], self.orig_data[3:]

    def __len__(self) -> int:
        return 1


def _model(field: Field, setting: Setting, seed: int) -> Any:
    partial = _partial()
    count = len(field.times)
    num_inducing = int(count * (3 / 6 if count > 1000 else 5 / 6))
    lower = np.array([field.times[0], field.positions[0]])
    upper = np.array([field.times[-1], field.positions[-1]])
    spread = LatinHypercube(2, rng=seed).random(num_inducing)
    inducing = torch.from_numpy(lower + spread * (upper - lower)).unsqueeze(0)
    gp = part("models").generate_multioutput_gp(
        1, inducing, ard_dims=2, zero_mean=setting.zero_mean, gp_kwargs={"natural": True, "use_tril": True}
    )
    gp.covar_module.lengthscale = setting.lengthscale
    gp.double()
    settings = part("configuration").VariationalConfiguration(initial_conditions=False, num_samples=5)
    raw = [part("utilities.torch").inv_softplus(torch.tensor([[one]], dtype=torch.float64)) for one in setting.rates]
    learned = (False, setting.learned, setting.learned)
    rates = [torch.nn.Parameter(one, requires_grad=free) for one, free in zip(raw, learned, strict=True)]
    elements = _elements()(field)
    return partial(1, gp, elements, rates, settings, num_training_points=int(SHARE * count))


def _partial() -> Any:
    """alfi's model of a field, which its own package leaves out where FEniCS is missing."""
    found = part("models.partial_lfm").PartialLFM
    part("models").PartialLFM = found
    part("trainers").PDETrainer = part("trainers.partial").PDETrainer
    return found


def _elements() -> Any:
    base = part("impl.pdes.reaction_diffusion").ReactionDiffusion

    class Elements(base):  # type: ignore[misc, valid-type]
        """alfi's equation, and its match of slopes; a step is the solution of a small dense system."""

        def __init__(self, field: Field) -> None:
            torch.nn.Module.__init__(self)
            nodes = np.unique(field.positions)
            self.time_steps = field.steps
            self.dt = float(field.times[-1] - field.times[0]) / field.steps
            self.mesh = SimpleNamespace(cells=lambda: np.zeros((len(nodes) - 1, 2)))
            mass, stiff = assembled(nodes)
            self._mass, self._stiff = torch.from_numpy(mass), torch.from_numpy(stiff)

        def forward(self, before: Tensor, force: Tensor, *rates: Tensor) -> Tensor:
            sensitivity, decay, diffusion = rates
            matrix = (1 + self.dt * decay) * self._mass + self.dt * diffusion * self._stiff
            right = (before + self.dt * sensitivity * force) @ self._mass
            inner = torch.linalg.solve(matrix[1:-1, 1:-1], right[0, 1:-1])
            return torch.nn.functional.pad(inner, (1, 1)).unsqueeze(0)

    return Elements


def assembled(nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mass and stiffness matrices [N, N] of linear elements on a line."""
    mass, stiff = np.zeros((2, len(nodes), len(nodes)))
    for left, width in enumerate(np.diff(nodes)):
        here = np.ix_((left, left + 1), (left, left + 1))
        mass[here] += width / 6 * np.array([[2, 1], [1, 2]])
        stiff[here] += np.array([[1, -1], [-1, 1]]) / width
    return mass, stiff


def _optimisers(model: Any, count: int) -> list[Any]:
    return [
        gpytorch.optim.NGD(model.variational_parameters(), num_data=count, lr=0.03),
        torch.optim.Adam(model.nonvariational_parameters(), lr=0.03),
    ]


def _match_slopes(model: Any, trainer: Any, data: _Data, shown: Tensor, epochs: int) -> None:
    """alfi's first stage: the spline's slopes, of all points and not only of those shown, against the equation's."""
    matching, normal = part("models").TrainMode.GRADIENT_MATCH, part("models").TrainMode.NORMAL
    grid = trainer.y_target[0].view(data.num_discretised + 1, -1)
    slope, target = model.fenics_model.interpolated_gradient(trainer.tx, grid)
    first = part("trainers").PartialPreEstimator(
        model,
        _optimisers(model, int(shown.sum())),
        data,
        slope,
        input_pair=(trainer.tx, trainer.y_target),
        target=target,
        train_mask=shown,
    )
    model.set_mode(matching)
    model.config.num_samples = 50
    first.train(epochs, report_interval=1000)
    model.set_mode(normal)
    model.config.num_samples = 20
