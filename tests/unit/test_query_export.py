"""An exported operator is the same operator: the same numbers, for any number of instances, without distlfm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.errors import MissingExtra, UsageError
from distlfm.queries import export as query_export
from distlfm.queries.export import OUTPUTS, described, export
from distlfm.store import Store
from tests.support.query_factories import field, genes, operator_of


def loaded(path: Path, form: str) -> Any:
    if form == "torchscript":
        return torch.jit.load(str(path))
    program = torch.export.load(path)
    used = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not {name for name in used if "linalg" in name or "fft" in name or "complex" in name}, "ONNX has none of it"
    return program.module()


@pytest.mark.parametrize("form", ["torch_export", "torchscript"])
@pytest.mark.parametrize("make", [genes, field], ids=["series", "field"])
@pytest.mark.slow
def test_exported_program_gives_the_operator_s_numbers(make: Any, form: str, tmp_path: Path) -> None:
    checkpoint, store = make()
    operator = operator_of(checkpoint)
    program = loaded(export(checkpoint, tmp_path / "operator.program", form), form)
    for count in (1, 2, 5):
        instances = Store.open(store).instances(0, count)
        answers = operator(instances)
        with torch.no_grad():
            found = dict(zip(OUTPUTS, program(*operator.arrays(instances, operator.schema.shape)), strict=True))
        for name, told in (("mean", "force_mean"), ("sd", "force_sd"), ("lower95", "force_lower95")):
            expected = np.stack([getattr(one, name) for one in answers])
            np.testing.assert_allclose(found[told].numpy(), expected, rtol=2e-4, atol=2e-5)
        for name, told in (("mean", "parameter_mean"), ("upper95", "parameter_upper95")):
            rows = [[getattr(one, name) for one in answer.estimates] for answer in answers]
            np.testing.assert_allclose(found[told].numpy(), rows, rtol=2e-4, atol=2e-5)


def test_contract_beside_the_program_says_what_goes_in(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    told = json.loads(export(checkpoint, tmp_path / "a.ts", "torchscript").with_suffix(".json").read_text())
    assert told["names"]["outputs"] == ["output_0", "output_1"]
    assert told["outputs"] == list(OUTPUTS)
    assert told["grid"] == [{"name": "time", "size": 21, "start": 0.0, "stop": 11.0}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.ts"]


@pytest.mark.slow
def test_exported_program_runs_without_distlfm(tmp_path: Path) -> None:
    checkpoint, _ = genes()
    path = export(checkpoint, tmp_path / "a.pt2")
    code = (
        "import sys, torch; sys.modules['distlfm'] = None\n"
        f"found = torch.export.load({str(path)!r}).module()(torch.zeros(3, 2, 21), torch.ones(3, 2, 21))\n"
        "assert found[0].shape == (3, 1, 21)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="torch_export, torchscript, onnx"):
        export(genes()[0], tmp_path / "a", "tensorflow")


def test_onnx_says_what_to_install_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_export, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install onnx onnxscript"):
        export(genes()[0], tmp_path / "a.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_no_name_is_both_a_buffer_and_an_output() -> None:
    """ONNX has one name for each thing."""
    program = query_export.Program(operator_of(genes()[0]))
    assert not {name for name, _ in program.named_buffers()} & {*OUTPUTS}


def test_operator_is_described_in_a_few_lines() -> None:
    told = described(genes()[0])
    assert told["takes"] == "output_0, output_1"
    assert told["known parameters"] == "sensitivity[output_0] = 1"
    assert "21 points" in told["over"]
