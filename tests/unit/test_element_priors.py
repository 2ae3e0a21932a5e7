"""A field's force may have a prior of its own for its lengthscale in time, and one for each direction."""

from __future__ import annotations

import pytest
import torch

from distlfm.config import apply_overrides, build
from distlfm.errors import UsageError
from distlfm.inference.field.settings import _short_lengths
from distlfm.inference.model import ForceConfig, Model
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system

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
