"""Weights as one vector, and back."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from distlfm.errors import UsageError
from distlfm.federated.codec import Codec, weights_digest
from distlfm.lfo import FourierOperator
from tests.support.lfo_toy import make_store
from tests.support.site_toy import make_operator


@pytest.fixture
def model(tmp_path: Path) -> FourierOperator:
    return make_operator(make_store(tmp_path / "store.zarr", 16)).model


def test_weights_come_back_as_they_were(model: FourierOperator) -> None:
    codec = Codec(model)
    vector = codec.encode(model.state_dict())
    other = make_like(model)
    codec.load(other, vector)
    assert vector.dtype == np.float64
    assert vector.shape == (sum(one.numel() for one in model.parameters()),)
    for name, one in model.named_parameters():
        assert torch.equal(one, dict(other.named_parameters())[name])


def test_nothing_of_the_normalisation_travels(model: FourierOperator) -> None:
    codec = Codec(model)
    assert not [name for name in codec.names if name.startswith("normal")]
    other = make_like(model)
    other.normal.value_mean.fill_(123.0)
    codec.load(other, codec.encode(model.state_dict()))
    assert float(other.normal.value_mean[0]) == 123.0


def test_local_layers_are_not_in_the_vector(model: FourierOperator) -> None:
    whole, less = Codec(model), Codec(model, local=["second.estimate.*"])
    kept = set(whole.names) - set(less.names)
    assert kept == {"second.estimate.weight", "second.estimate.bias"}
    assert less.size == whole.size - sum(dict(model.named_parameters())[name].numel() for name in kept)
    assert less.digest != whole.digest


def test_a_vector_of_other_weights_is_refused(model: FourierOperator) -> None:
    codec = Codec(model)
    with pytest.raises(UsageError, match="shares"):
        codec.decode(np.zeros(codec.size - 1))
    spoiled = codec.encode(model.state_dict())
    spoiled[7] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        codec.decode(spoiled)


def test_a_pattern_that_names_no_weight_is_refused(model: FourierOperator) -> None:
    with pytest.raises(UsageError, match=r"secnd\.\*"):
        Codec(model, local=["secnd.*"])
    with pytest.raises(UsageError, match="Nothing is shared"):
        Codec(model, local=["*"])


def test_complex_weights_are_refused_as_noise_would_cover_half_of_them() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UsageError, match="complex"):
        Codec(model)


def test_a_digest_tells_any_other_weight_or_buffer(model: FourierOperator) -> None:
    other = make_like(model)
    assert weights_digest(other) == weights_digest(model)
    other.normal.value_sd[0] += 1
    assert weights_digest(other) != weights_digest(model)


def make_like(model: FourierOperator) -> FourierOperator:
    return copy.deepcopy(model)
