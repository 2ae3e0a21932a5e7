"""Patients' values under the real app: looked for in all that leaves a site and in every log, in any spelling."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated import client_app
from distlfm.federated.rounds import ask, run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.simulation.sites import nodes_of
from distlfm.federated.site.work import Site, codec_of
from distlfm.lfo import Operator
from distlfm.store import Store
from tests.support.secure_sites import spellings
from tests.support.site_toy import make_federation, make_grid, make_programme

pytestmark = pytest.mark.slow


def telling(values: Iterable[float]) -> list[bytes]:
    """Spellings that do not turn up by chance: no float32, no zeros and round numbers."""
    found = [spelling for value in values for spelling in spellings(float(value))]
    empty = (b"0", b"\0", b"\xff")
    return [one for one in found if len(one) >= 8 and len(one) - sum(one.count(byte) for byte in empty) >= 5]


def of_patients(site: Site) -> list[bytes]:
    """Names, some observations, forces and parameters of the site's first patients."""
    store = Store.open(site.folder / "pairs.zarr")
    found = [str(name).encode() for name in store.read("id")[:3]]
    for variable in ("observed", "force_mean", "params_mean"):
        values = np.asarray(store.read(variable)[:3], np.float64).reshape(3, -1)
        found += [*telling(values[:, 1::7].ravel()), *(values[:, i : i + 2].astype("<f4").tobytes() for i in (0, 3))]
    return found


def of_work(operator: Operator, site: Site, programme: ProgrammeConfig) -> list[bytes]:
    """Figures of one site alone, and what its work makes of some weights; the same again, as the work is seeded."""
    codec = codec_of(operator.model, programme.task)
    before = codec.encode(operator.model.state_dict())
    done = site.train(before, programme.round_task(1))
    told = {
        f"{part} {key}": value
        for part in ("choose", "test")
        for key, value in site.evaluate(before, programme.task, part=part)[0].items()
    }
    cohort = site.statistics()[0]
    change = done.vector - before
    some = np.flatnonzero(change)[::97]
    assert len(some) > 20
    values = [*told.values(), cohort["level"], cohort["spread"], *done.vector[some], *change[some]]
    return telling(values)


def seen(canaries: list[bytes], content: bytes) -> list[bytes]:
    return [one for one in canaries if one in content]


def test_nothing_of_a_patient_or_of_one_sites_work_leaves_it_or_stands_in_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=1, evaluate=True)
    codec = codec_of(operator.model, programme.task)
    inner = make_grid(sites)
    grid = SecureGrid(inner, min_sites=3)
    assert run_rounds(grid, operator, codec, programme, tmp_path / "run").history[0]["sites"] == 4
    for question in ("model", "cohort"):
        asked = make_programme(kind="query", question=question)
        assert ask(grid, operator, codec, asked, tmp_path / "elsewhere", "1")["sites"] == 4
    wire = b"".join(frame.payload for frame in inner.wire)
    kept = [*(tmp_path / "run").rglob("*"), *(site.folder / "audit.jsonl" for site in sites.values())]
    kept += [path for site in sites.values() for path in (site.folder / "state").rglob("*")]
    logs = b"".join(path.read_bytes() for path in kept if path.is_file()) + caplog.text.encode()
    assert wire
    assert logs
    for site in (sites["east"], sites["south"]):
        canaries = of_patients(site) + of_work(operator, Site(site.folder), programme)
        assert seen(canaries, wire) == []
        assert seen(canaries, logs) == []


def test_the_look_out_sees_the_work_where_there_is_no_masking(tmp_path: Path) -> None:
    """The same app without the mod: a site's update and figures are on the wire."""
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=1)
    vector = codec_of(operator.model, programme.task).encode(operator.model.state_dict())
    plain = ClientApp()
    plain.train()(client_app.train)
    grid = LocalGrid(plain, nodes_of(sites))
    task = programme.round_task(1).model_dump_json()
    config = ConfigRecord({"task": task, "base": sites["east"].digest})
    content = RecordDict({"arrays": ArrayRecord({"shared": Array(vector)}), "config": config})
    [reply] = grid.send_and_receive([Message(content, 1, "train")])
    assert not reply.has_error()
    wire = b"".join(frame.payload for frame in grid.wire)
    found = seen(of_work(operator, Site(sites["east"].folder), programme), wire)
    assert len(found) > 20
