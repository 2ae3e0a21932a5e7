"""Fits of series by alfi itself, with the settings of the scripts that its wheel carries for the paper's tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.lfo_shared import say
from benchmarks.paper_software import part
from distlfm.instance import FloatArray

STEP = 0.5
"""The step of Runge–Kutta that the scripts ask for; predictions use alfi's own, a tenth."""


@dataclass(frozen=True)
class Series:
    """Outputs [P, N] at times [N], in the shape that alfi's trainers and models read."""

    times: FloatArray
    values: FloatArray
    variance: FloatArray | None = None
    data: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        rows = torch.from_numpy(self.values)
        object.__setattr__(self, "data", [(torch.from_numpy(self.times).float(), row) for row in rows])

    @property
    def num_outputs(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data[index]

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Found:
    """Force [Q] and outputs [P, Q] with their standard deviations, and rates [P] by name, after some epochs."""

    force: FloatArray
    force_sd: FloatArray
    outputs: FloatArray
    outputs_sd: FloatArray
    rates: dict[str, FloatArray]
    epochs: int
    seconds: float


@dataclass(frozen=True)
class Rates:
    """What the scripts hold at known values after each epoch: sensitivity and decay of one gene."""

    gene: int
    sensitivity: float
    decay: float


def variational(
    series: Series, query: FloatArray, known: Rates | None, epochs: int, seed: int, **options: Any
) -> list[Found]:
    """The paper's variational fit of transcription; what it finds every ten epochs, which the scripts choose from.

    alfi 1.0.2 starts its own transcription model at zero. The data begin in the steady state, and so does this one.
    """
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    inducing, natural = options.get("inducing", 15), options.get("natural", True)
    places = torch.linspace(0, float(series.times[-1]), inducing).view(1, inducing, 1)
    more = {"zero_mean": natural, "initial_lengthscale": options.get("lengthscale")}
    gp = part("models").generate_multioutput_gp(1, places, gp_kwargs={"natural": natural}, **more)
    settings = part("configuration").VariationalConfiguration(
        num_samples=options.get("samples", 80), initial_conditions=False
    )
    model = _from_steady_state()(series.num_outputs, gp, settings, **options.get("model", {}))
    count = series.values.shape[1]
    if natural:
        rate, other = options.get("rates", (0.06, 0.03))
        optimisers: list[Any] = [
            gpytorch.optim.NGD(model.variational_parameters(), num_data=count, lr=rate),
            torch.optim.Adam(model.nonvariational_parameters(), lr=other),
        ]
    else:
        optimisers = [torch.optim.Adam(model.parameters(), lr=0.05)]
    trainer = _in_order(part("trainers").VariationalTrainer(model, optimisers, series))

    def hold() -> None:
        if known is not None:
            model.raw_sensitivity[known.gene] = model.positivity.inverse_transform(torch.tensor(known.sensitivity))
            model.raw_decay[known.gene] = model.positivity.inverse_transform(torch.tensor(known.decay))

    def look() -> tuple[Any, Any, dict[str, Tensor]]:
        names = {"basal": model.basal_rate, "sensitivity": model.sensitivity, "decay": model.decay_rate}
        return model.predict_f(times), model.predict_m(times), {name: one.squeeze(-1) for name, one in names.items()}

    times = torch.from_numpy(query).float()
    return _train(trainer, hold, look, epochs, step_size=options.get("step", STEP))


def analytic(series: Series, query: FloatArray, known: Rates | None, epochs: int, rate: float = 0.01) -> list[Found]:
    """alfi's analytic fit, by the kernel of Lawrence et al.; every ten epochs, as above."""
    assert series.variance is not None
    model = part("models").ExactLFM(series, series.variance.reshape(-1))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    density = ExactMarginalLogLikelihood(model.likelihood, model)
    trainer = part("trainers").ExactTrainer(model, [optimiser], series, loss_fn=density)
    model.train()
    kernel = model.covar_module

    def hold() -> None:
        if known is not None:
            for name in ("sensitivity", "decay"):
                values = getattr(kernel, name)
                values[known.gene] = getattr(known, name)
                setattr(kernel, name, values)

    def look() -> tuple[Any, Any, dict[str, Tensor]]:
        rates = {"basal": model.mean_module.basal, "sensitivity": kernel.sensitivity, "decay": kernel.decay}
        return model.predict_f(times, jitter=1e-3), model.predict_m(times, jitter=1e-3), rates

    times = torch.from_numpy(query).float()
    return _train(trainer, hold, look, epochs)


def prey(series: Series, query: FloatArray, epochs: int, seed: int) -> Found:
    """The paper's Lotka–Volterra with a periodic kernel: prey (the force) and predator at the times asked for."""
    torch.manual_seed(seed)
    inducing = torch.linspace(0, float(series.times[-1]), 20).view(1, 20, 1)
    batch = torch.Size([1])
    mean = gpytorch.means.ConstantMean(batch_shape=batch)
    mean.initialize(constant=0.1)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel(batch_shape=batch), batch_shape=batch)
    kernel.base_kernel.lengthscale, kernel.base_kernel.period_length = 1.3, 8
    gp = part("models").MultiOutputGP(mean, kernel, inducing, 1, natural=False)
    settings = part("configuration").VariationalConfiguration(num_samples=150)
    model = part("impl.odes").LotkaVolterra(1, gp, settings, num_training_points=len(series.times))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.025)
    trainer = part("trainers").VariationalTrainer(model, [optimiser], series, warm_variational=50)
    start = time.perf_counter()
    trainer.train(epochs, report_interval=epochs)
    model.eval()
    times = torch.from_numpy(query).float()
    with torch.no_grad():
        predator = model.predict_m(times, step_size=0.1)
        force = part("utilities.torch").softplus(model.gp_model(times).sample(torch.Size([500])))[..., 0]
    rates = {"growth": model.growth_rate, "mortality": model.decay_rate}
    return Found(
        _plain(force.mean(0)),
        _plain(force.std(0)),
        _plain(predator.mean).T,
        _plain(predator.variance.sqrt()).T,
        {name: _plain(one)[:, 0] for name, one in rates.items()},
        epochs,
        time.perf_counter() - start,
    )


def _in_order(trainer: Any) -> Any:
    """alfi 1.0.2 shuffles the outputs for its loader and not for its model, so that rates belong to other genes."""
    trainer.train_indices = np.arange(len(trainer.dataset))
    trainer.set_loaders()
    return trainer


def _from_steady_state() -> Any:
    base = part("impl.odes").TranscriptionLFM

    class SteadyState(base):  # type: ignore[misc, valid-type]
        @property
        def initial_state(self) -> Tensor:
            return self.basal_rate / self.decay_rate

        @initial_state.setter
        def initial_state(self, value: Tensor) -> None:
            del value  # the zeros that its base starts with

    return SteadyState


Look = Callable[[], tuple[Any, Any, dict[str, Tensor]]]


def _train(trainer: Any, hold: Callable[[], None], look: Look, epochs: int, **options: Any) -> list[Found]:
    """Train by tens; a failure ends the training, as in the scripts, and what was found before it remains."""
    ended = trainer.after_epoch

    def after() -> None:
        with torch.no_grad():
            hold()
        ended()

    trainer.after_epoch = after
    found: list[Found] = []
    seconds = 0.0
    while 10 * len(found) < epochs:
        start = time.perf_counter()
        try:
            trainer.train(epochs=10, report_interval=100, **options)
        except (RuntimeError, ValueError) as error:  # a matrix that cannot be factored, or values that are not finite
            say(f"alfi ended after {10 * len(found)} epochs: {error}")
            break
        seconds += time.perf_counter() - start
        with torch.no_grad():
            force, outputs, rates = look()
            bands = [force.mean, force.variance.sqrt(), outputs.mean, outputs.variance.sqrt()]
        plain = [_plain(one) for one in bands]
        found.append(
            Found(
                plain[0].reshape(-1),
                plain[1].reshape(-1),
                plain[2].T,
                plain[3].T,
                {name: _plain(one) for name, one in rates.items()},
                10 * (len(found) + 1),
                seconds,
            )
        )
    return found


def _plain(values: Tensor) -> FloatArray:
    return values.detach().double().numpy()
