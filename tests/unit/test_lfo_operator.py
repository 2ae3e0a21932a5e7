"""An operator answers on any grid, for one or many, from a file that can do nothing but be wrong."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from distlfm.errors import UsageError
from distlfm.instance import Instance
from distlfm.lfo import (
    Examples,
    LoopConfig,
    Operator,
    OperatorConfig,
    SplitConfig,
    Training,
    TrainSettings,
    finish,
    save_checkpoint,
)
from distlfm.lfo.dataset import fingerprint
from distlfm.lfo.novelty import Novelty, features
from distlfm.lfo.schema import SCHEMA, OperatorSchema
from distlfm.lfo.spectral import spline
from distlfm.queries.export import described
from distlfm.runtime.reporting import Plain
from distlfm.store import Store
from distlfm.verbs.evaluate import evaluate
from distlfm.verbs.query import query
from tests.support.lfo_toy import make_store

SMALL = OperatorConfig(layers=2, width=12, modes=4, points=17, head=16, pooled=6, regressions=2, regressors=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("lfo") / "store", count=120)


@pytest.fixture(scope="module")
def operator(store: Store) -> Operator:
    examples = Examples([store])
    config = TrainSettings(
        operator=SMALL, loop=LoopConfig(epochs=4, batch=16), split=SplitConfig(validation=0.2, calibration=0.3)
    )
    training = Training(config, examples.schema, examples)
    training.run()
    return finish(training)


@pytest.fixture(scope="module")
def instances(store: Store) -> list[Instance]:
    return store.instances(0, 6)


def test_an_answer_survives_saving(operator: Operator, instances: list[Instance], tmp_path: Path) -> None:
    again = Operator.load(operator.save(tmp_path / "operator.pt"))
    one, other = operator(instances[0]), again(instances[0])
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.upper95, other.upper95)
    assert one.estimates == other.estimates
    assert one.novelty == other.novelty
    assert len(repr(operator)) < 200


def test_a_batch_is_answered_as_one_by_one(operator: Operator, instances: list[Instance]) -> None:
    together = operator(instances)
    for one, answer in zip(instances, together, strict=True):
        alone = operator(one)
        assert answer.id == one.id
        assert np.allclose(answer.mean, alone.mean, atol=1e-4)
        assert np.allclose(
            [estimate.mean for estimate in answer.estimates],
            [estimate.mean for estimate in alone.estimates],
            atol=1e-4,
        )
        assert answer.novelty == pytest.approx(alone.novelty, rel=1e-2)


def test_bands_are_ordered_and_hold_the_mean(operator: Operator, instances: list[Instance]) -> None:
    answer = operator(instances[0])
    assert answer.mean.shape == answer.sd.shape == (1, 33)
    assert (answer.lower95 < answer.lower68).all()
    assert (answer.lower68 < answer.mean).all()
    assert (answer.mean < answer.upper68).all()
    assert (answer.upper68 < answer.upper95).all()
    for estimate in answer.estimates:
        assert estimate.lower95 < estimate.lower68 < estimate.mean < estimate.upper68 < estimate.upper95


def test_irregular_times_and_gaps_are_answered_on_the_grid(operator: Operator, instances: list[Instance]) -> None:
    one = instances[0]
    keep = np.sort(np.random.default_rng(0).choice(33, 20, replace=False))
    mask = np.ones((2, 20), bool)
    mask[1, 5:9] = False
    sparse = Instance("sparse", one.outputs, one.times[keep] + 0.01, one.values[:, keep], mask)
    answer = operator(sparse)
    assert answer.mean.shape == (1, 33)
    assert np.isfinite(answer.mean).all()
    whole = operator(one)
    assert np.abs(answer.mean - whole.mean).mean() < 1.0 * np.abs(whole.mean).mean()


def test_an_unseen_output_is_missing_not_an_error(operator: Operator, instances: list[Instance]) -> None:
    one = instances[0]
    answer = operator(Instance("half", ("b",), one.times, one.values[1:], one.mask[1:]))
    assert np.isfinite(answer.mean).all()


def test_a_finer_grid_is_answered_on_itself(operator: Operator, instances: list[Instance]) -> None:
    one = instances[0]
    fine = np.linspace(0.0, 4.0, 65)
    values = np.stack([np.interp(fine, one.times, row) for row in one.values])
    answer = operator(Instance("fine", one.outputs, fine, values, np.ones(values.shape, bool)))
    assert answer.shape == (65,)


@pytest.mark.parametrize(("points", "exactly"), [(65, True), (97, True), (50, False)])
def test_parameters_are_those_of_the_trained_points_however_fine_the_grid(
    operator: Operator, instances: list[Instance], points: int, exactly: bool
) -> None:
    """Noise between the trained points changes the force, and no parameter; a grid that has others is interpolated."""
    one = replace(instances[0], truth=None)
    times = np.linspace(0, 4, points)
    smooth = CubicSpline(one.times, one.values, axis=1)(times)
    here = np.isclose(times[:, None], one.times, atol=1e-9).any(1)
    rough = smooth + 0.05 * ~here * np.random.default_rng(0).standard_normal(smooth.shape)
    fine = replace(one, times=times, values=rough if exactly else smooth, mask=np.ones((2, points), bool))
    known, found = operator(one), operator(fine)
    sides = [[(e.mean, e.sd, e.lower95, e.upper95) for e in answer.estimates] for answer in (known, found)]
    assert np.allclose(*sides, rtol=1e-5 if exactly else 2e-2)
    assert found.mean.shape == (1, points)
    if exactly:
        step = (points - 1) // 32
        assert np.abs(found.mean[:, ::step] - known.mean).max() > 1e-3


def test_holes_of_a_finer_grid_are_holes_of_its_trained_points(operator: Operator) -> None:
    told = copy.deepcopy(operator)
    told.model.normal.holes.fill_(1.0)
    values, mask = torch.randn(3, 2, 65), torch.ones(3, 2, 65)
    mask[:, :, 20:41] = 0
    fine = told.predict(values, mask)
    coarse = told.predict(values[..., ::2].contiguous(), mask[..., ::2].contiguous())
    assert torch.allclose(fine.params, coarse.params, atol=1e-4)
    assert torch.allclose(fine.params_logvar, coarse.params_logvar, atol=1e-4)
    whole = told.predict(values, torch.ones_like(mask))
    assert not torch.allclose(fine.params, whole.params, atol=1e-3)


def test_an_answer_is_given_at_any_point(operator: Operator, instances: list[Instance]) -> None:
    answer = operator(instances[0])
    found = answer.at(answer.times[3:5])
    assert np.allclose(found["mean"], answer.mean[:, 3:5])
    assert found["upper95"].shape == (1, 2)


def test_observations_outside_the_domain_are_warned_of(operator: Operator, instances: list[Instance]) -> None:
    late = replace(instances[0], times=instances[0].times + 2.0, truth=None)
    answer = operator(late)
    assert answer.novelty > 1
    assert answer.warning is not None
    assert "outside of the times" in answer.warning


def test_ten_times_the_amplitude_is_warned_of(operator: Operator, instances: list[Instance]) -> None:
    large = replace(instances[0], values=10 * instances[0].values, truth=None)
    answer = operator(large)
    assert answer.warning is not None
    assert "unlike the data" in answer.warning


def test_far_fewer_observations_than_in_training_are_warned_of(operator: Operator, instances: list[Instance]) -> None:
    """Though the network takes no notice of the mask: it never saw a hole."""
    one = instances[0]
    plain = operator(one)
    few = operator(replace(one, mask=one.mask & (np.arange(33) % 8 != 3), truth=None))
    assert plain.warning is None
    assert "observed at other points" not in (few.warning or "")
    sparse = operator(replace(one, mask=one.mask & (np.arange(33) % 2 == 0), truth=None))
    assert sparse.novelty > 1
    assert sparse.warning is not None
    assert "observed at other points" in sparse.warning


def test_who_was_trained_with_holes_is_not_warned_of_as_many(operator: Operator, store: Store) -> None:
    batch = Examples([store]).batch(range(40))
    found = operator.predict(batch.values, batch.mask)
    told = features(operator.model, batch.values, batch.mask, found)
    plain = Novelty.fit(told, told).score(told)[0]
    holes = {**told, "seen": told["seen"] * 0.4}
    for hidden, warned in ((0.0, 40), (0.5, 40), (0.9, int((plain > 1).sum()))):
        novelty = Novelty.fit(told, told, hidden)
        assert int((novelty.score(holes)[0] > 1).sum()) == warned
        assert torch.equal(novelty.score(told)[0], plain)


def test_an_operator_that_is_not_calibrated_says_so(
    operator: Operator, store: Store, instances: list[Instance], tmp_path: Path
) -> None:
    assert operator.notices == ()
    config = TrainSettings(
        operator=SMALL, loop=LoopConfig(epochs=1, batch=32), split=SplitConfig(validation=0.2, calibration=0.0)
    )
    examples = Examples([store])
    raw = finish(Training(config, examples.schema, examples))
    answer = raw(instances[0])
    assert math.isnan(answer.novelty)
    assert answer.warning is None
    assert "not calibrated" in raw.notices[0]
    assert "not known" in raw.notices[1]
    assert "outside" in (raw(replace(instances[0], times=instances[0].times + 2.0, truth=None)).warning or "")
    raw.save(tmp_path / "raw.pt")
    said = io.StringIO()
    run = query(tmp_path / "raw.pt", instances[:1], [f"run.dir={tmp_path}", "plot=true"], Plain(said))
    assert "not calibrated" in said.getvalue()
    assert run.overall["notices"] == list(raw.notices)
    assert run.rows[0]["novelty"] is None
    assert run.overall["novelty"]["median"] is None
    page = (tmp_path / "report.html").read_text()
    assert "not calibrated" in page
    assert "Unlike the training data: not known." in page
    assert "not calibrated" in described(tmp_path / "raw.pt")["to be known"]
    told = evaluate(tmp_path / "raw.pt", store.path, ["part=all", "limit=4"], Plain(said))
    assert set(raw.notices) <= set(told.overall["notices"])


def test_a_series_on_a_very_fine_grid_needs_no_table_of_its_square(
    operator: Operator, instances: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlfm.lfo.operator.LARGEST", 100)
    fine = np.linspace(0.0, 4.0, 1001)
    values = np.stack([CubicSpline(instances[0].times, row)(fine) for row in instances[0].values])
    one = Instance("fine", instances[0].outputs, fine, values, np.ones(values.shape, bool))
    answer = operator(one)
    assert answer.shape == (100,)
    assert np.allclose(answer.at(instances[0].times)["mean"], operator(instances[0]).mean, atol=0.1)
    with pytest.raises(UsageError, match="too fine for an operator"):
        spline(5000, 10)


def test_an_unknown_output_is_refused_with_a_sentence(operator: Operator, instances: list[Instance]) -> None:
    one = instances[0]
    strange = Instance("strange", ("a", "z"), one.times, one.values, one.mask)
    with pytest.raises(UsageError, match="the output z"):
        operator(strange)


def test_files_of_other_versions_are_refused(operator: Operator, tmp_path: Path) -> None:
    path = operator.save(tmp_path / "operator.pt")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "version": SCHEMA + 1}, path)
    with pytest.raises(UsageError, match=f"has version {SCHEMA + 1}"):
        Operator.load(path)


def test_weights_of_another_network_are_refused_with_a_sentence(operator: Operator, tmp_path: Path) -> None:
    path = operator.save(tmp_path / "operator.pt")
    content = torch.load(path, weights_only=True)
    wider = {**content["operator"], "width": 20}
    for name, changed in (("wider", {"operator": wider}), ("nameless", {"schema": {}}), ("odd", {"novelty": {"a": 1}})):
        torch.save({**content, **changed}, tmp_path / f"{name}.pt")
        with pytest.raises(UsageError, match=f"{name}.pt does not hold the network that its settings describe") as told:
            Operator.load(tmp_path / f"{name}.pt")
        assert len(str(told.value)) < 500


def test_an_operator_keeps_the_fingerprints_of_its_stores(operator: Operator, store: Store, tmp_path: Path) -> None:
    assert fingerprint(store) in operator.training["stores"]
    assert fingerprint(make_store(tmp_path / "copy", count=120)) == fingerprint(store)
    assert fingerprint(make_store(tmp_path / "fewer", count=119)) != fingerprint(store)


def test_who_never_saw_a_hole_is_told_of_none(operator: Operator, instances: list[Instance]) -> None:
    values, mask = operator.arrays(instances[:1], (33,))
    holes = mask.clone()
    holes[..., 5:9] = 0
    assert torch.equal(operator.predict(values, holes).force, operator.predict(values, mask).force)
    model = copy.deepcopy(operator.model)
    model.normal.holes.fill_(1.0)
    assert not torch.equal(model(values, holes).force, model(values, mask).force)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.pt"
    text.write_text("not a checkpoint")
    state = save_checkpoint(tmp_path / "state.pt", {}, "distlfm training")
    pickled = tmp_path / "pickled.pt"
    torch.save({"format": "distlfm operator", "version": SCHEMA, "code": OperatorConfig()}, pickled)
    for path in (text, state, pickled, tmp_path / "nothing.pt"):
        with pytest.raises(UsageError):
            Operator.load(path)


def test_stores_that_do_not_fit_are_refused(store: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other", store.spec.model_copy(update={"outputs": ("a", "c")}))
    with pytest.raises(UsageError, match="outputs"):
        OperatorSchema.of([store, other])
