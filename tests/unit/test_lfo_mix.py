"""What an operator may learn from: fits, which leave out what was known, generated instances, and both together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.errors import UsageError
from distlfm.lfo import AugmentConfig, Examples, LoopConfig, OperatorConfig, SplitConfig, Training, TrainSettings
from distlfm.lfo.physics import GridSolver, solves
from distlfm.lfo.schema import OperatorSchema
from distlfm.store import Store, find_store
from distlfm.verbs.fit import fit
from distlfm.verbs.generate import generate
from tests.support.lfo_toy import make_store

PROJECT = Path(__file__).resolve().parents[2]
KNOWN = "sensitivity[output_0]"
QUICK = ("inference.posterior.stages=[10]",)
SETTINGS = TrainSettings(
    operator=OperatorConfig(layers=1, width=8, modes=4, points=17, head=16, pooled=4, regressions=2, regressors=2),
    augment=AugmentConfig(recombine=1.0, mix=0.2),  # as shipped
    split=SplitConfig(validation=0.4, calibration=0.0),
    loop=LoopConfig(epochs=2, batch=8),
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Two genes, of which the first one's sensitivity is known: generated, and the fits of the same."""
    folder = tmp_path_factory.mktemp("mix")
    drawn = folder / "drawn.zarr"
    few = ("instances=8", "points=13", "num_outputs=2", f"run.dir={drawn}", "run.executor=serial")
    generate(PROJECT / "configs/generate/transcription.yaml", few)
    own = ("data.dataset=null", "data.stride=1", f"run.dir={folder / 'fits'}", "run.executor=serial", "run.keep=none")
    fit(PROJECT / "configs/fit/transcription_toy.yaml", drawn, [*own, *QUICK])
    return {"generated": Store.open(drawn), "fitted": Store.open(find_store(folder / "fits"))}


@pytest.mark.parametrize("which", [("fitted",), ("generated", "fitted"), ("fitted", "generated")], ids="+".join)
def test_the_equation_of_fits_is_solved_with_what_their_config_has_fixed(
    stores: dict[str, Store], which: tuple[str, ...]
) -> None:
    assert KNOWN not in stores["fitted"].spec.parameters
    examples = Examples([stores[name] for name in which])
    assert examples.schema.fixed == {KNOWN: 1.0}
    assert solves(examples.schema)
    training = Training(SETTINGS, examples.schema, examples)
    assert training.model.equation is not None
    history = training.run().history
    assert np.isfinite([one["train_total"] for one in history]).all()
    assert np.isfinite([one["validation_calibrated"] for one in history]).all()


def test_the_forces_of_fits_explain_their_observations(stores: dict[str, Store]) -> None:
    """The known parameter has its place among the others: solved forward, a fit gives back what was observed."""
    examples = Examples([stores["fitted"]])
    batch = examples.batch(range(len(examples)))
    solved = GridSolver(examples.schema)(batch.force, batch.params)
    off = ((solved - batch.values) * batch.mask).square().sum((-1, -2)) / batch.mask.sum((-1, -2))
    assert float(off.sqrt().median()) < 0.1 * float(batch.values.std())


def with_spec(store: Store, **changes: Any) -> Store:
    return Store(store.path, store.spec.model_copy(update=changes))


def with_mechanism(store: Store, **options: Any) -> Store:
    mechanism = {**store.spec.attributes["config"]["mechanism"], **options}
    return with_spec(store, attributes={"mechanism": "transcription", "config": {"mechanism": mechanism}})


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return with_spec(make_store(tmp_path_factory.mktemp("toy") / "store"), units={"time": "h"})


def test_other_units_times_and_equations_do_not_mix_and_it_is_said_why(toy: Store) -> None:
    times = tuple(60 * t for t in toy.spec.times or ())
    for other, word in (
        (with_spec(toy, units={"time": "min"}), r"its unit of time is min, and there it is h\. An operator learns"),
        (with_spec(toy, units={}, times=times), "its range of time is 0 to 240, and there it is 0 to 4"),
        (with_mechanism(toy, initial="free"), r"its mechanism\.initial is free, and there it is steady"),
        (with_mechanism(toy, fixed={"sensitivity": {"a": 2.0}}), r"its known parameters is \{'sensitivity\[a\]': 2"),
        (with_mechanism(toy, fixed={}), r"its known parameters is \{\}"),
    ):
        with pytest.raises(UsageError, match=word):
            OperatorSchema.of([toy, other])


def test_other_priors_unknown_units_and_a_store_without_a_config_mix(toy: Store) -> None:
    other = with_mechanism(toy, priors={"decay": {"kind": "lognormal", "median": 2.0, "spread": 0.1}})
    merged = with_spec(toy, attributes={"mechanism": "transcription"}, units={})
    found = OperatorSchema.of([merged, toy, other])
    assert found.mechanism["kind"] == "transcription"
    assert found.units["time"] == "h"
    assert found == OperatorSchema.of([toy, toy, other])


def test_recombined_instances_without_new_noise_are_observed_as_they_are_labelled(tmp_path: Path) -> None:
    from distlfm.lfo.inputs import Augmentation

    examples = Examples([make_store(tmp_path / "store", count=32, points=65)])
    batch = examples.batch(range(32))
    forward = GridSolver(examples.schema)
    for noise in (True, False):
        config = AugmentConfig(noise=noise, recombine=1.0, mix=0.5)
        found = Augmentation(config, examples.schema)(batch, torch.Generator().manual_seed(0))
        assert not torch.equal(found.force, batch.force)
        assert not torch.equal(found.params, batch.params)
        left = found.values - forward(found.force, found.params)
        assert float(left.abs().max()) < 0.06, "no more than the noise, whose deviation is 0.01"
        assert float(left.std()) > 0.005, "and no less"
