"""One loop: no example in two splits, no layer without a gradient, and a resumed run is the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distlfm.errors import UsageError
from distlfm.lfo import (
    Alone,
    AugmentConfig,
    Batch,
    Examples,
    LoopConfig,
    LossConfig,
    Operator,
    OperatorConfig,
    OperatorSchema,
    OptimiserConfig,
    Ranks,
    SplitConfig,
    Training,
    TrainSettings,
    dataset,
    finish,
    load_checkpoint,
    save_checkpoint,
    split,
)
from distlfm.lfo.checkpoint import TRAINING
from distlfm.lfo.loss import force_q2, losses
from distlfm.store import Store
from distlfm.training.settings import FIGURES
from tests.support.lfo_toy import make_plane, make_store

SMALL = OperatorConfig(layers=2, width=8, modes=4, points=17, head=16, pooled=6, regressions=2, regressors=3)


def settings(**changes: object) -> TrainSettings:
    found = {
        "operator": SMALL,
        "loop": LoopConfig(epochs=3, batch=8),
        "split": SplitConfig(validation=0.2, calibration=0.2),
        "augment": AugmentConfig(recombine=1.0, mix=0.5, missing=0.3),
    }
    return TrainSettings(**{**found, **changes})


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return Examples([make_store(tmp_path_factory.mktemp("lfo") / "store")])


def weights(training: Training) -> torch.Tensor:
    return torch.cat([one.flatten() for one in training.average.state_dict().values()])


def test_a_gradient_reaches_every_parameter(examples: Examples) -> None:
    training = Training(settings(), examples.schema, examples)
    batch = examples.batch(np.arange(12))
    found = losses(training.model(batch.values, batch.mask), batch, training.model.normal, training.config.loss, 0.0)
    found["total"].sum().backward()
    silent = [name for name, one in training.model.named_parameters() if one.grad is None or not bool(one.grad.any())]
    assert not silent


def test_half_precision_is_for_the_layers_alone(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs train in bfloat16 by default, and no GPU inverts a matrix of such numbers."""
    seen: dict[str, set[torch.dtype]] = {"solve": set(), "bmm": set()}

    def watch(place: object, name: str) -> None:
        work = getattr(place, name)

        def call(*given: torch.Tensor) -> torch.Tensor:
            seen[name].update(one.dtype for one in given)
            found: torch.Tensor = work(*given)
            seen[name].add(found.dtype)
            return found

        monkeypatch.setattr(place, name, call)

    half, whole = (
        Training(settings(loop=LoopConfig(epochs=1, batch=8, precision=precision)), examples.schema, examples)
        for precision in ("bfloat16", "float32")
    )
    watch(torch.linalg, "solve")
    watch(torch, "bmm")
    half._step(half.split.train[:8])
    assert torch.bfloat16 in seen["bmm"]
    assert torch.bfloat16 not in seen["solve"]
    assert all(bool(torch.isfinite(one.grad).all()) for one in half.model.parameters() if one.grad is not None)
    whole._step(whole.split.train[:8])
    batch = examples.batch(np.arange(12))
    mixed, plain = (one.model(batch.values, batch.mask) for one in (half, whole))
    assert {one.dtype for one in mixed} == {torch.float32}
    assert float((mixed.force - plain.force).detach().std() / plain.force.detach().std()) < 0.05
    assert half.best_model().mixed is None, "answers have all digits"


@pytest.mark.parametrize("killed_at", [1, 3, 7])
def test_a_killed_and_resumed_run_is_the_undisturbed_one(examples: Examples, tmp_path: Path, killed_at: int) -> None:
    whole = Training(settings(), examples.schema, examples)
    whole.run()
    first = Training(settings(), examples.schema, examples)
    first.run(until=killed_at)
    save_checkpoint(tmp_path / "state.pt", first.state_dict(), TRAINING)
    torch.manual_seed(99)
    second = Training(settings(), examples.schema, examples)
    second.load_state_dict(load_checkpoint(tmp_path / "state.pt", TRAINING))
    outcome = second.run()
    assert outcome.finished
    assert torch.equal(weights(second), weights(whole))
    assert [one["train_total"] for one in outcome.history] == [one["train_total"] for one in whole.history]
    for name, one in whole.best_model().state_dict().items():
        assert torch.equal(one, second.best_model().state_dict()[name])


def test_a_run_is_resumed_with_its_own_settings_only(examples: Examples) -> None:
    state = Training(settings(), examples.schema, examples).state_dict()
    other = Training(settings(loop=LoopConfig(epochs=4, batch=8)), examples.schema, examples)
    with pytest.raises(UsageError, match=r"other settings \(loop\)"):
        other.load_state_dict(state)


class Half(Alone):
    """One of two ranks, without the other: its gradients are its own part of the mean."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.world = rank, 2


def test_the_mean_of_two_ranks_gradients_is_that_of_one(examples: Examples) -> None:
    config = settings(optimiser=OptimiserConfig(clip=1e9))

    def gradient(ranks: Ranks) -> torch.Tensor:
        training = Training(config, examples.schema, examples, ranks)
        training._step(training.split.train[:7])  # an odd number: the ranks' parts differ
        return torch.cat([one.grad.flatten() for one in training.model.parameters() if one.grad is not None])

    both = (gradient(Half(0)) + gradient(Half(1))) / 2
    assert torch.allclose(both, gradient(Alone()), atol=1e-5)


def test_an_epochs_report_has_what_a_search_can_go_by(examples: Examples) -> None:
    assert set(FIGURES) <= set(Training(settings(), examples.schema, examples).run().history[-1])


def test_epochs_do_not_read_again_what_fits_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, seen = dataset.read_rows, []

    def counted(store: Store, schema: OperatorSchema, rows: range) -> dataset.Arrays:
        seen.append(rows)
        return read(store, schema, rows)

    monkeypatch.setattr(dataset, "read_rows", counted)
    examples = Examples([make_store(tmp_path / "store")])
    assert Training(settings(), examples.schema, examples).run().finished
    assert sorted(rows.start for rows in seen) == [0, 16, 32], "each shard once"


def test_a_field_of_three_dimensions_is_learned_and_asked_about(tmp_path: Path) -> None:
    """Time and a plane: every layer gets a gradient, and answers are on the grid of the data, a finer one too."""
    store = make_plane(tmp_path / "store")
    examples = Examples([store])
    network = SMALL.model_copy(update={"layers": 1, "modes": 2, "points": 6})
    config = settings(operator=network, loop=LoopConfig(epochs=2, batch=8), augment=AugmentConfig(missing=0.2))
    training = Training(config, examples.schema, examples)
    training._step(training.split.train[:8])
    assert not [name for name, one in training.model.named_parameters() if one.grad is None or not bool(one.grad.any())]
    history = training.run().history
    assert history[-1]["train_total"] < history[0]["train_total"]
    path = finish(training).save(tmp_path / "operator.pt")
    operator = Operator.load(path)
    (answer,) = operator(store.instances(0, 1))
    assert answer.mean.shape == (1, 8, 7, 6)
    assert np.isfinite([answer.lower95, answer.upper95]).all()
    (fine,) = operator(make_plane(tmp_path / "fine", 1, (15, 13, 11)).instances())
    assert fine.mean.shape == (1, 15, 13, 11)
    moved = np.sqrt(np.square(fine.mean[:, ::2, ::2, ::2] - answer.mean).mean())
    assert moved < 0.02 * float(training.model.normal.force_sd)


def test_no_instance_is_in_two_parts_not_even_its_copies(tmp_path: Path) -> None:
    one, copy = make_store(tmp_path / "one"), make_store(tmp_path / "copy")
    both = Examples([one, copy])
    parts = split(both.ids, SplitConfig(validation=0.3, calibration=0.3))
    names = [{both.ids[i] for i in part} for part in (parts.train, parts.validation, parts.calibration)]
    assert all(names)
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not names[1] & names[2]
    assert sum(map(len, (parts.train, parts.validation, parts.calibration))) == len(both)


def test_a_patients_days_stay_together() -> None:
    ids = [f"p{k}/day{d}" for k in range(30) for d in range(4)]
    parts = split(ids, SplitConfig(validation=0.3, calibration=0.3, group="/"))
    patients = [{ids[i].split("/")[0] for i in part} for part in (parts.train, parts.validation, parts.calibration)]
    assert not patients[0] & patients[1]
    assert not patients[0] & patients[2]


def test_the_numbered_windows_of_a_series_stay_together_without_being_told() -> None:
    ids = [f"clinic/p{k}/{d}" for k in range(60) for d in range(4)]
    parts = split(ids, SplitConfig(validation=0.3, calibration=0.3))
    patients = [
        {ids[i].rpartition("/")[0] for i in part} for part in (parts.train, parts.validation, parts.calibration)
    ]
    assert all(patients)
    assert sum(map(len, patients)) == 60
    each = [f"clinic/p{k}" for k in range(60)]  # no numbers of windows: each is one by itself
    alone, told = (split(each, SplitConfig(validation=0.3, calibration=0.3, group=group)) for group in (None, ""))
    assert np.array_equal(alone.train, told.train)
    assert len(alone.validation)


def test_a_large_split_is_described_by_evenly_spaced_instances(examples: Examples) -> None:
    indices = np.arange(3, 38)
    assert examples.some(indices, 4096).tolist() == indices.tolist()
    assert examples.some(indices, 5).tolist() == [3, 11, 20, 28, 37]
    little = Examples(examples.stores, memory=0.01)
    assert len(little.some(indices, 4096)) < 12


def test_failures_are_left_out(tmp_path: Path) -> None:
    found = Examples([make_store(tmp_path / "store", failed=(3, 17))])
    assert len(found) == 38
    assert not {"toy-3", "toy-17"} & set(found.ids)


def test_known_parameters_are_not_learned(examples: Examples) -> None:
    assert examples.schema.fixed == {"sensitivity[a]": 1.0, "noise": 0.01}
    assert "sensitivity[b]" in examples.schema.parameters


def test_normalisation_comes_from_the_training_split(examples: Examples) -> None:
    training = Training(settings(), examples.schema, examples)
    batch = examples.batch(training.split.train)
    assert torch.allclose(training.model.normal.force_mean, batch.force.mean((0, 2)), atol=1e-5)
    assert torch.allclose(training.model.normal.param_mean, batch.params.mean(0), atol=1e-5)


@pytest.mark.slow
def test_an_operator_learns_without_labels_from_the_equation(tmp_path: Path) -> None:
    """Fine-tuning by reconstruction alone: no force, no parameter is told, and the observed series are explained."""
    examples = Examples([make_store(tmp_path / "store", count=64)])
    config = settings(
        loss=LossConfig(reconstruction=1.0), augment=AugmentConfig(), loop=LoopConfig(epochs=25, batch=16)
    )
    training = Training(config, examples.schema, examples)
    told = Examples.batch

    def unlabelled(self: Examples, *arguments: object) -> Batch:
        batch = told(self, *arguments)  # type: ignore[arg-type]
        nothing = {name: torch.full_like(getattr(batch, name), torch.nan) for name in ("force", "params")}
        return replace(batch, **nothing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Examples, "batch", unlabelled)
        history = training.run().history
    losses_seen = [one["train_reconstruction"] for one in history]
    assert losses_seen[-1] < 0.2 * losses_seen[0]
    batch = examples.batch(training.split.validation)
    found = training.model(batch.values, batch.mask).force
    assert float(force_q2(found.detach(), batch.force).median()) > 0.5


def test_tables_made_for_an_answer_serve_a_training_too(examples: Examples) -> None:
    """Tables of a grid are kept; what an answer has made of them must be fit for gradients."""
    config = settings(operator=SMALL.model_copy(update={"points": 19}), loop=LoopConfig(epochs=1, batch=8))
    first = finish(Training(config, examples.schema, examples))
    first.predict(*(getattr(examples.batch([0, 1]), name) for name in ("values", "mask")))
    assert Training(config, examples.schema, examples).run().finished


def test_of_many_shards_a_few_are_held_at_a_time(tmp_path: Path) -> None:
    """Whatever the memory, an epoch has each example once, and the same one has the same content."""
    store = make_store(tmp_path / "store", count=100)
    whole, little = Examples([store]), Examples([store], memory=0.03)
    indices = np.arange(100)
    order = little.order(indices, 0, 3)
    assert sorted(order) == list(indices)
    assert list(order) != list(indices)
    assert np.array_equal(order, little.order(indices, 0, 3))
    for first in range(0, 100, 16):
        here = order[first : first + 16]
        one, other = whole.batch(here), little.batch(here, order[first + 16 : first + 48])
        assert one.ids == other.ids
        assert torch.equal(one.values, other.values)
