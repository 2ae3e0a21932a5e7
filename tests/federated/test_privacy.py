"""Noise that hides a patient, whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distlfm.errors import UsageError
from distlfm.federated.codec import Codec
from distlfm.federated.settings import PrivacyConfig, RoundTask, SharedNoise
from distlfm.federated.site.privacy import (
    GRAIN,
    PatientGradients,
    clipped,
    noised,
    noisy_mean,
    private_mean,
    shortened,
    summed_updates,
    tune_privately,
)
from distlfm.federated.site.tuning import Objective
from distlfm.lfo.tail import Adapter, Tail, adapter_parameters
from tests.support.lfo_toy import make_store
from tests.support.site_toy import make_batch, make_operator

PRIVACY = PrivacyConfig(epsilon=5.0, noise=1.5, clip=0.5, sample=0.5)
WINDOWS = (3, 1, 4, 2)


@pytest.mark.parametrize("kind", ["pairs", "physics"])
@pytest.mark.parametrize("adapter", ["head", "shift"])
@pytest.mark.slow
def test_the_gradient_of_a_patient_is_that_of_all_their_windows(tmp_path: Path, kind: str, adapter: Adapter) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    task = RoundTask.model_validate({"kind": kind, "adapter": adapter})
    names = adapter_parameters(operator.model, adapter)
    weights = {name: dict(operator.model.named_parameters())[name] for name in names}
    found = PatientGradients(operator, batch, task)(weights, np.array([2, 0]))
    for row, patient in zip(found, ("p2", "p0"), strict=True):
        here = [i for i, name in enumerate(batch.ids) if name.startswith(f"{patient}/")]
        part = batch.at(here)
        leaves = [one.requires_grad_(True) for one in weights.values()]
        loss = Objective(operator, task)(operator.model(part.values, part.mask), part).mean()
        expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, leaves)])
        operator.model.requires_grad_(False)
        assert torch.allclose(row, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


def test_the_end_of_the_network_gives_what_the_network_gives(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    tail = Tail(operator.model)
    whole = operator.model(batch.values, batch.mask)
    found = tail.predict({}, tail.features(batch.values, batch.mask), tuple(batch.values.shape[2:]))
    for name in whole._fields:
        assert torch.allclose(getattr(found, name), getattr(whole, name), atol=1e-5), name


def test_an_adapter_is_a_few_hundred_weights_of_the_usual_network(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store.zarr", 16)
    model = make_operator(store).model
    assert Codec(model, adapter_parameters(model, "head")).size <= 300
    assert Codec(model, adapter_parameters(model, "shift")).size < Codec(model, adapter_parameters(model, "head")).size


def test_no_patient_moves_the_sum_by_more_than_the_clip() -> None:
    gradients = torch.randn(9, 20, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 9)[:, None]
    whole = clipped(gradients, 0.5).sum(0)
    for patient in range(9):
        without = clipped(torch.cat([gradients[:patient], gradients[patient + 1 :]]), 0.5).sum(0)
        assert float((whole - without).norm()) <= 0.5 * (1 + 1e-5)


def test_a_patient_who_teaches_nothing_gives_zeros_and_no_nan() -> None:
    assert bool((clipped(torch.zeros(2, 5), 0.5) == 0).all())


@pytest.mark.parametrize("wild", [float("nan"), float("inf"), 1e30])
def test_a_patient_whose_gradient_overflows_is_no_more_to_be_seen_than_any_other(wild: float) -> None:
    gradients = torch.full((3, 4), 0.1)
    without = clipped(gradients[:2], 0.5).sum(0)
    gradients[2, 1] = wild
    assert float((clipped(gradients, 0.5).sum(0) - without).norm()) <= 0.5 * (1 + 1e-9)


def test_private_work_does_not_fail_by_one_patients_data(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    batch.values[0] = torch.inf
    names = adapter_parameters(operator.model, "shift")
    found = tune_privately(operator, names, names, batch, RoundTask(adapter="shift", steps=2), PRIVACY)
    assert all(bool(torch.isfinite(one).all()) for one in found.values())


def test_private_work_that_leads_nowhere_gives_the_weights_that_came(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    names = adapter_parameters(operator.model, "shift")
    before = {name: one.clone() for name, one in operator.model.state_dict().items()}
    task = RoundTask(adapter="shift", steps=3, lr=1e38, optimiser="sgd")
    tune_privately(operator, names, names, batch, task, PRIVACY.model_copy(update={"noise": 1e6}))
    assert all(torch.equal(one, before[name]) for name, one in operator.model.state_dict().items())


@pytest.mark.parametrize("wild", [float("nan"), float("inf")])
def test_an_update_that_is_no_number_leaves_as_none_at_all(wild: float) -> None:
    before, after = np.ones(10), np.ones(10)
    after[4] = wild
    assert np.array_equal(shortened(before, after, 0.5), before)


def test_the_noise_of_a_step_is_as_large_as_it_is_paid_for() -> None:
    random = np.random.default_rng(0).bytes
    drawn = torch.stack([noisy_mean(torch.zeros(3, 50), 6.0, PRIVACY, random) for _ in range(400)])
    assert float(drawn.std()) == pytest.approx(PRIVACY.noise * PRIVACY.clip / 6.0, rel=0.02)


def test_noise_covers_both_parts_of_the_fourier_weights(tmp_path: Path) -> None:
    model = make_operator(make_store(tmp_path / "store.zarr", 16)).model
    codec = Codec(model, ["layers.*.spectral.weight"])
    before = codec.encode(model.state_dict())
    changed = codec.decode(before + noised(np.zeros_like(before), 0.2, 3.0, np.random.default_rng(0).bytes))
    own = dict(model.named_parameters())
    for name, weight in changed.items():
        real, imaginary = (weight - own[name]).unbind(1)
        for part in (real, imaginary):
            assert bool((part != 0).all())
            assert float(part.std()) == pytest.approx(0.6, rel=0.15)
        together = torch.corrcoef(torch.stack([real.flatten(), imaginary.flatten()]))[0, 1]
        assert abs(float(together)) < 0.2


def test_an_update_is_shortened_and_an_empty_one_is_left_alone() -> None:
    before, after = np.zeros(10), np.full(10, 5.0)
    assert np.linalg.norm(shortened(before, after, 0.5)) == pytest.approx(0.5)
    assert np.array_equal(shortened(before, before, 0.5), before)


def test_a_figure_of_one_patient_is_bounded_and_noised() -> None:
    privacy = replace_bound(PRIVACY, bound=2.0, figures=1e-6)
    wild = np.array([1.0, 1.0, 1e9, np.nan])
    assert private_mean(wild, privacy, np.random.default_rng(0).bytes) == pytest.approx((1 + 1 + 2 + 0) / 4, abs=1e-4)
    noisy = [private_mean(np.ones(4), PRIVACY, np.random.default_rng(seed).bytes) for seed in range(300)]
    assert np.std(noisy) == pytest.approx(PRIVACY.figures * PRIVACY.bound / 4, rel=0.1)


def test_who_asks_cannot_foresee_the_noise(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    task = RoundTask(adapter="shift", steps=2, seed=3)
    names = adapter_parameters(operator.model, "shift")
    start = {name: dict(operator.model.named_parameters())[name].clone() for name in names}
    found = []
    for _ in range(2):
        operator.model.load_state_dict(start, strict=False)
        found.append(tune_privately(operator, names, names, batch, task, PRIVACY)[names[0]].clone())
    assert not torch.equal(found[0], found[1])


def test_only_the_adapter_is_tuned_with_noise(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    before = {name: one.clone() for name, one in operator.model.state_dict().items()}
    names = adapter_parameters(operator.model, "head")
    tune_privately(operator, names, names, batch, RoundTask(adapter="head", steps=2), PRIVACY)
    changed = {name for name, one in operator.model.state_dict().items() if not torch.equal(one, before[name])}
    assert changed == set(names)


def test_the_whole_network_is_not_tuned_with_noise(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    with pytest.raises(UsageError, match="whole network"):
        tune_privately(operator, ["lift.0.weight"], [], batch, RoundTask(), PRIVACY)


def test_a_step_that_draws_nobody_is_noise_alone(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    names = adapter_parameters(operator.model, "shift")
    own = {name: one.clone() for name, one in operator.model.named_parameters() if name in names}
    empty = PatientGradients(operator, batch, RoundTask(adapter="shift"))(own, np.array([], dtype=np.intp))
    assert empty.shape == (0, sum(one.numel() for one in own.values()))
    assert float(noisy_mean(empty, 2.0, PRIVACY).abs().sum()) > 0


def replace_bound(privacy: PrivacyConfig, **told: float) -> PrivacyConfig:
    return privacy.model_copy(update=told)


def test_a_patient_more_changes_a_sum_of_updates_by_the_clip_at_most_and_no_other_patient(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, WINDOWS)
    names = adapter_parameters(operator.model, "head")
    task = RoundTask(adapter="head", steps=3, lr=0.5)
    noise = SharedNoise(multiplier=1.0, clip=0.2)
    here = [i for i, name in enumerate(batch.ids) if not name.startswith("p1/")]
    fewer = replace(batch.at(here), ids=tuple(batch.ids[i] for i in here))
    [whole, without] = [summed_updates(operator, names, one, task, noise) for one in (batch, fewer)]
    assert 0.1 < np.linalg.norm(whole - without) <= 0.2 * (1 + 1e-6)
    alone = replace(batch.at([3]), ids=(batch.ids[3],))
    assert batch.ids[3].startswith("p1/")
    assert whole - without == pytest.approx(summed_updates(operator, names, alone, task, noise), abs=1e-6)


def test_how_many_patients_a_site_has_need_not_be_told() -> None:
    privacy = PRIVACY.model_copy(update={"figures": 1e-7, "patients": 10})
    assert private_mean(np.ones(4), privacy) == pytest.approx(0.4, abs=1e-4)


def test_noise_is_on_a_grid_that_the_values_are_put_on_first() -> None:
    """Floating-point noise has gaps that tell what it was added to (Mironov 2012)."""
    step = 0.5 * GRAIN
    for value in (0.0, 0.1, 1 / 3):
        found = noised(np.full(1000, value), 0.5, 2.0) / step
        assert np.array_equal(found, np.rint(found))
