"""The one training loop. Launchers wrap it from outside by a `Ranks`; it knows nothing of them.

All ranks see the same global batch and take their slices of it, so that the number of ranks changes no example, no
augmentation and, but for rounding, no weight. Everything random is a function of the seed and the step.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from distlfm.errors import UsageError, WorkError
from distlfm.lfo.dataset import Examples
from distlfm.lfo.inputs import Augmentation, fit_normal
from distlfm.lfo.loss import losses, score, standing
from distlfm.lfo.model import FourierOperator
from distlfm.lfo.operator import Operator
from distlfm.lfo.physics import GridSolver
from distlfm.lfo.ranks import Alone, Ranks
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import Index, TrainSettings, split

AHEAD = 8
"""Batches whose shards are read before they are needed."""

Report = dict[str, Any]
Listener = Callable[[Report], None]


class Training:
    """A model in training. `run` goes on from wherever it is; `state_dict` holds all of where that is.

    best: the report of the best epoch. history: a report per epoch.
    """

    def __init__(
        self,
        config: TrainSettings,
        schema: OperatorSchema,
        examples: Examples,
        ranks: Ranks | None = None,
        start: Operator | None = None,
    ) -> None:
        """start: whose weights and normalisation are gone on from; its network is the config's."""
        self.config, self.schema, self.examples, self.ranks = config, schema, examples, ranks or Alone()
        self.start = start
        self.split = split(examples.ids, config.split)
        if not len(self.split.train):
            raise UsageError("No instance is left to train on.", "Give more instances, or smaller split shares.")
        torch.manual_seed(config.loop.seed)
        self.model = FourierOperator(config.operator, schema)
        if start is None:
            fit_normal(self.model.normal, examples, self.split.train, config.augment.missing > 0)
        else:
            self.model.load_state_dict(start.model.state_dict())
        self.model.to(self.ranks.device, self._dtype)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.model.mixed = self._mixed
        self._wrapped = self.ranks.wrap(self.model)
        options = config.optimiser
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        self._augment = Augmentation(config.augment, schema)
        self._forward = GridSolver(schema) if config.loss.reconstruction else None
        self.step = 0
        self.best: Report | None = None
        self._best_weights: dict[str, Tensor] = {}
        self.history: list[Report] = []
        self.seconds = 0.0
        self._sums = self._no_sums()

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.split.train) // self.config.loop.batch)

    @property
    def total_steps(self) -> int:
        return self.config.loop.epochs * self.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.step // self.steps_per_epoch

    @property
    def finished(self) -> bool:
        """Whether all epochs were done."""
        return self.step >= self.total_steps

    def run(
        self,
        on_step: Listener | None = None,
        on_epoch: Listener | None = None,
        stop: Callable[[], bool] | None = None,
        until: int | None = None,
    ) -> Training:
        """Train to the end, or until `stop` says so or step `until` is reached; to be continued by another call.

        `stop` must answer alike on all ranks. on_step gets step, epoch, loss, lr, samples; on_epoch the epoch's
        training loss and the validation split's figures.
        """
        last = self.total_steps if until is None else min(until, self.total_steps)
        order: Index | None = None
        while self.step < last and not (stop is not None and stop()):
            since = time.perf_counter()
            epoch, at = divmod(self.step, self.steps_per_epoch)
            if order is None or at == 0:
                order = self.examples.order(self.split.train, self.config.loop.seed, epoch)
            size = self.config.loop.batch
            report = self._step(order[at * size : (at + 1) * size], order[(at + 1) * size : (at + 1 + AHEAD) * size])
            self.step += 1
            self.seconds += time.perf_counter() - since
            if on_step is not None:
                on_step(report)
            if at + 1 == self.steps_per_epoch:
                since = time.perf_counter()
                line = self._end_epoch(epoch)
                self.seconds += time.perf_counter() - since
                line["seconds"] = self.seconds
                if on_epoch is not None:
                    on_epoch(line)
        return self

    def best_model(self) -> FourierOperator:
        """The averaged weights of the epoch that did best on the validation split, or the last ones without one."""
        model = copy.deepcopy(self.average)
        if self._best_weights:
            model.load_state_dict(self._best_weights)
        return model.eval()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on: tensors, numbers and texts only."""
        return {
            "config": self.config.model_dump(mode="json"),
            "schema": self.schema.model_dump(mode="json"),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "best": self.best,
            "best_weights": self._best_weights,
            "history": list(self.history),
            "seconds": self.seconds,
            "sums": self._sums,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run of the same config and data was."""
        if state["config"] != self.config.model_dump(mode="json"):
            changed = [
                key for key, value in self.config.model_dump(mode="json").items() if state["config"][key] != value
            ]
            raise UsageError(
                f"The saved run had other settings ({', '.join(changed)}).", "Resume it with its own config."
            )
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.best, self.seconds = state["step"], state["best"], state["seconds"]
        self._best_weights, self.history = dict(state["best_weights"]), list(state["history"])
        self._sums = {name: value.clone() for name, value in state["sums"].items()}
        torch.set_rng_state(state["rng"].cpu())

    def _step(self, indices: Index, upcoming: Index | None = None) -> Report:
        options = self.config
        generator = torch.Generator().manual_seed(options.loop.seed * 1_000_003 + self.step)
        whole = self._augment(self.examples.batch(indices, upcoming), generator)
        count = len(whole)
        batch = whole.part(self.ranks.share(count)).to(self.ranks.device, self._dtype)
        rate = self._rate()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        prediction = self._wrapped(batch.values, batch.mask)
        parts = losses(prediction, batch, self.model.normal, options.loss, self._beta(), self._forward)
        # Each rank has its own number of examples; the mean of gradients over ranks is that of all examples.
        loss = parts["total"].sum() * (self.ranks.world / count)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.optimiser.clip)
        if not math.isfinite(float(norm)):
            raise WorkError(f"The gradient is not finite at step {self.step}.", "Lower optimiser.lr.")
        self.optimiser.step()
        self._follow()
        sums = self.ranks.sum(torch.stack([one.detach().sum() for one in parts.values()])).cpu()
        report = {name: float(value) / count for name, value in zip(parts, sums, strict=True)}
        for name, value in zip(parts, sums, strict=True):
            self._sums[name] += value
        self._sums["count"] += count
        return {
            "step": self.step + 1,
            "epoch": self.step // self.steps_per_epoch,
            "loss": report.pop("total"),
            **{f"loss_{name}": value for name, value in report.items()},
            "lr": rate,
            "gradient": float(norm),
            "samples": count,
        }

    def _end_epoch(self, epoch: int) -> Report:
        count = float(self._sums.pop("count"))
        line: Report = {"epoch": epoch, "step": self.step}
        line |= {f"train_{name}": float(value) / count for name, value in self._sums.items()}
        self._sums = self._no_sums()
        done = epoch + 1 == self.config.loop.epochs
        if len(self.split.validation) and (done or (epoch + 1) % self.config.loop.validate_every == 0):
            figures = score(self.average, self.examples, self.split.validation, self.config, self.ranks, self._forward)
            line |= {f"validation_{name}": value for name, value in figures.items()}
            if self.best is None or standing(line) < standing(self.best):
                self.best = dict(line)
                self._best_weights = {name: one.clone() for name, one in self.average.state_dict().items()}
        self.history.append(dict(line))
        return line

    def _rate(self) -> float:
        options = self.config.optimiser
        rising = options.warmup * self.total_steps
        if self.step < rising:
            return options.lr * (self.step + 1) / (rising + 1)
        share = (self.step - rising) / max(1.0, self.total_steps - rising)
        return options.lr * (options.floor + (1 - options.floor) * 0.5 * (1 + math.cos(math.pi * share)))

    def _beta(self) -> float:
        options = self.config.loss
        along = self.step / max(1.0, options.warmup * self.total_steps)
        return options.beta + (1 - options.beta) * max(0.0, 1 - along)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the weights; a young average follows faster."""
        decay = min(self.config.optimiser.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.config.loop.precision == "float64" else torch.float32

    @property
    def _mixed(self) -> torch.dtype | None:
        """In which products are taken while training, if not in the weights' own type."""
        wanted = self.config.loop.precision
        has_it = self.ranks.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if wanted == "bfloat16" or (wanted == "auto" and has_it) else None

    @staticmethod
    def _no_sums() -> dict[str, Tensor]:
        names = ("force", "parameters", "reconstruction", "total", "count")
        return {name: torch.zeros((), dtype=torch.float64) for name in names}
