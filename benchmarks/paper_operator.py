"""The paper's own software (alfi): its operator of genes, learned from the instances that ours learns from.

With the settings of its notebook. Its figures have no goals: they stand beside ours in docs/paper.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.goals import at_least
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, say
from benchmarks.lfo_transcription import INSTANCES, OTHERS
from benchmarks.paper_software import VERSION, part, software
from distlfm.data import catalog
from distlfm.inference.findings.scores import q2
from distlfm.instance import Instance

STRIDES = {"12 times, as in the notebook": 10, "111 times": 1}
RATES = ("basal", "sensitivity", "decay")
Example = tuple[Tensor, Tensor, Tensor]


WIDTH, MODES, BATCH, EPOCHS, RATE, DECAY = 20, 4, 20, 50, 1e-3, 1e-4


def run(quick: bool = False) -> dict[str, Any]:
    """The only goal is that it learned twice: from as many times as the notebook's, and from all."""
    shop = Workshop(quick)
    training = shop.generated("transcription", "genes-train", INSTANCES, TRAINING).instances()
    fresh = shop.generated("transcription", "genes-fresh", OTHERS, FRESH).instances()
    reference = catalog.load("transcription_toy").instances
    found: dict[str, Any] = {}
    with software():
        for label, stride in STRIDES.items():
            model, seconds = learned(genes(training, stride), 2 if quick else EPOCHS)
            found[label] = {
                "fresh": scored(model, genes(fresh, stride)),
                "reference": scored(model, genes(reference, stride)),
                "training, s": seconds,
            }
            say(f"alfi {VERSION}, {label}: {found[label]}")
    return {"figures": {"trainings": at_least(len(found), len(STRIDES))}, "alfi": VERSION, **found}


def genes(instances: Sequence[Instance], stride: int) -> list[Example]:
    """Times and outputs [T, 1 + P], force [T, 1] and rates [3, P] of each, at each `stride`-th time."""
    found = []
    for one in instances:
        truth = one.truth
        assert truth is not None
        assert truth.force is not None
        seen = np.column_stack([one.times, one.values.T])[::stride]
        force = np.interp(one.times, truth.times, truth.force[0])[::stride, None]
        rates = np.stack([np.broadcast_to(truth.parameters[name], len(one.outputs)) for name in RATES])
        found.append(tuple(torch.from_numpy(np.ascontiguousarray(each)).float() for each in (seen, force, rates)))
    return found  # type: ignore[return-value]


def learned(training: Sequence[Example], epochs: int) -> tuple[Any, float]:
    """The operator after its last epoch, and the seconds it took."""
    torch.manual_seed(0)
    start = time.perf_counter()
    model = part("models").NeuralOperator(1, training[0][0].shape[-1], 2, MODES, WIDTH)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    loaders = [
        DataLoader(each, batch_size=BATCH, shuffle=True, drop_last=True)  # type: ignore[arg-type]
        for each in (training, training[:BATCH])
    ]
    part("trainers").NeuralOperatorTrainer(model, [optimiser], *loaders).train(epochs, report_interval=1000)
    return model, time.perf_counter() - start


def scored(model: Any, others: Sequence[Example]) -> dict[str, float]:
    """The figures of `benchmarks.lfo_shared.scored`, at the times it is asked at."""
    model.eval()
    seen, force, rates = (torch.stack(each) for each in zip(*others, strict=True))
    with torch.no_grad():
        answer, found = model(seen)
    mean, sd = answer[..., 0].numpy(), torch.nn.functional.softplus(answer[..., 1]).numpy()
    true = force[..., 0].numpy()
    return {
        "latent Q²": float(np.mean([q2(guess, truth) for guess, truth in zip(mean, true, strict=True)])),
        "95 % coverage": float((np.abs(true - mean) <= 1.96 * sd).mean()),
        "sum of parameter errors": float((found.reshape(rates.shape) - rates).abs().mean((0, 2)).sum()),
    }
