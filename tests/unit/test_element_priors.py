"""A field's force may have a prior of its own for each direction, and each of several forces its own priors."""

from __future__ import annotations

import pytest
import torch

from distlfm.config import apply_overrides, build
from distlfm.errors import UsageError
from distlfm.inference.field.settings import _short_lengths
from distlfm.inference.model import ForceConfig, Model
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.mechanisms.priors import LogNormal
from distlfm.study.parts import RBF, Matern32, of_forces

MINUTES = {"kind": "lognormal", "median": 10.0, "spread": 0.5}
METRES = {"kind": "lognormal", "median": 0.1, "spread": 0.2}


def model(kind: str = "reaction_diffusion", fixed: dict[str, object] | None = None, **priors: object) -> Model:
    force = build(ForceConfig, {"priors": priors, "fixed": fixed or {}})
    return Model(build_system({"kind": kind}, ["output"]), force, LikelihoodConfig())


def test_lengthscales_in_time_and_space_have_priors_of_their_own() -> None:
    space = model(**{"lengthscale[t]": MINUTES, "lengthscale[x]": METRES}).space
    z = torch.zeros(2, space.num_free, dtype=torch.float64)
    z[1, space.slice_of("force.lengthscale")] = 1.0
    values = space.unpack(z)
    expected = torch.tensor([[10.0, 0.1], [10.0, 0.1]], dtype=torch.float64)
    expected[1] *= torch.tensor([0.5, 0.2], dtype=torch.float64).exp()
    torch.testing.assert_close(values["force.lengthscale"], expected)
    torch.testing.assert_close(space.pack(values, z), z)


def test_the_shared_prior_holds_for_the_elements_without_one_and_known_ones_need_none() -> None:
    shared = model(**{"lengthscale": MINUTES, "lengthscale[x]": METRES})
    middle = shared.space.unpack(torch.zeros(shared.space.num_free, dtype=torch.float64))
    assert middle["force.lengthscale"].tolist() == pytest.approx([10.0, 0.1])
    known = model(fixed={"lengthscale": {"t": 7.0}}, **{"lengthscale[x]": METRES})
    middle = known.space.unpack(torch.zeros(known.space.num_free, dtype=torch.float64))
    assert middle["force.lengthscale"].tolist() == pytest.approx([7.0, 0.1])


def test_a_field_is_made_as_fine_as_each_of_them_wants() -> None:
    in_time, along = _short_lengths(model(**{"lengthscale[t]": MINUTES, "lengthscale[x]": METRES}))
    assert 1.0 < in_time < 10.0
    assert 0.05 < along < 0.1


def test_an_element_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no parameter 'lengthscale\[y\]'. Did you mean 'lengthscale\[[tx]\]'"):
        model(**{"lengthscale[y]": METRES})
    with pytest.raises(UsageError, match=r"no parameter 'lengthscale\[t\]'. Did you mean 'lengthscale'\?"):
        model("glucose", **{"lengthscale[t]": MINUTES})
    with pytest.raises(UsageError, match="allows negative values"):
        model(**{"lengthscale[x]": {"kind": "normal"}})


def test_it_can_be_given_on_the_command_line() -> None:
    given = apply_overrides({"priors": {"lengthscale[x]": METRES}}, ["priors.lengthscale[x].median=0.2"])
    assert build(ForceConfig, given).priors["lengthscale[x]"].median == 0.2


# ---- several forces --------------------------------------------------------------------------------------------------


def two_forces(**force: object) -> dict[str, list[float]]:
    """The middle of what is assumed of both forces."""
    system = build_system({"kind": "transcription", "forces": ["meal", "insulin"]}, ["level"])
    found = Model(system, build(ForceConfig, force), LikelihoodConfig())
    middle = found.space.unpack(torch.zeros(found.space.num_free, dtype=torch.float64))
    return {name: value.tolist() for name, value in middle.items() if "." in name}


def test_each_of_several_forces_may_have_a_prior_and_known_values_of_its_own() -> None:
    own = two_forces(priors={"lengthscale": METRES, "insulin.lengthscale": MINUTES}, fixed={"meal.variance": 3.0})
    assert own == {
        "meal.lengthscale": pytest.approx([0.1]),
        "insulin.lengthscale": pytest.approx([10.0]),
        "meal.variance": pytest.approx([3.0]),
        "insulin.variance": pytest.approx([1.0]),
    }
    with pytest.raises(UsageError, match=r"no parameter 'insuln.*Did you mean .*'insulin\.lengthscale'"):
        two_forces(priors={"insuln.lengthscale": MINUTES})


def test_in_python_each_force_has_its_kernel() -> None:
    kernels = {"meal": RBF(LogNormal(0.5, 0.3)), "insulin": RBF(LogNormal(4.0, 0.3), variance=2.0)}
    section = of_forces(kernels)
    assert {name: one.median for name, one in section.priors.items()} == {
        "meal.lengthscale": 0.5,
        "insulin.lengthscale": 4.0,
    }
    assert section.fixed == {"insulin.variance": 2.0}
    with pytest.raises(UsageError, match="meal, insulin have kernels of different kinds"):
        of_forces({"meal": RBF(), "insulin": Matern32()})
