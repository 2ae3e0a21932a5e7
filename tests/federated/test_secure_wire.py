"""What the server and the logs get to see: on the recorded wire there is no value of a site, in any spelling."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated.audit import verify
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.simulation.grid import LocalGrid
from tests.support.secure_sites import (
    COUNTS,
    LOSSES,
    NAMES,
    ask,
    local_grid,
    make_sites,
    name_of,
    request,
    spellings,
    step_of,
)

PATIENT = "patient-4711"
GLUCOSE = 13.370042


def secrets_of(name: str, size: int) -> list[float]:
    """Numbers that nobody but the site may know: its metrics and what it did to the weights."""
    weights = request(size)["arrays"]["shared"].numpy()
    step = step_of(name, size)
    # Counts are small whole numbers whose plain text is everywhere; their binary and weighted forms are looked for.
    weighted = [COUNTS[name] * LOSSES[name], *(COUNTS[name] * step)]
    return [LOSSES[name], *weighted, *step, *(weights + step)]


def found_in(content: bytes, size: int) -> list[float]:
    values = [value for name in NAMES for value in secrets_of(name, size)]
    return [value for value in values if any(spelling in content for spelling in spellings(value))]


def counts_in(content: bytes) -> list[float]:
    return [count for count in COUNTS.values() if any(struct.pack(form, count) in content for form in ("<d", ">d"))]


def test_no_update_metric_or_count_of_a_site_is_on_the_wire(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = local_grid(make_sites(tmp_path))
    replies = ask(SecureGrid(inner), request())
    assert replies[0].content["metrics"]["num-sites"] == 4.0
    wire = b"".join(frame.payload for frame in inner.wire)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for content in (wire, kept, caplog.text.encode()):
        assert found_in(content, 20) == []
        assert counts_in(content) == []
    for name in NAMES:
        facts = [entry.get("facts", {}).values() for entry in verify(tmp_path / name / "audit.jsonl").entries]
        assert facts
        assert COUNTS[name] not in {value for told in facts for value in told if isinstance(value, int | float)}


def test_the_look_out_sees_values_where_there_is_no_masking(tmp_path: Path) -> None:
    """The same grid and app without the mod: every site's numbers are on the wire, so the look-out can see."""
    inner = LocalGrid(_unmasked(), make_sites(tmp_path), run_id=7)
    ask(inner, request())
    wire = b"".join(frame.payload for frame in inner.wire)
    expected = [
        value
        for name in NAMES
        for value in [LOSSES[name], *(request()["arrays"]["shared"].numpy() + step_of(name, 20))]
    ]
    assert set(expected) <= set(found_in(wire, 20))
    assert counts_in(wire) == list(COUNTS.values())


def _unmasked() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name = name_of(context)
        weights = message.content.array_records["arrays"]["shared"].numpy()
        content = RecordDict(
            {
                "arrays": ArrayRecord({"shared": Array(weights + step_of(name, len(weights)))}),
                "metrics": MetricRecord({"num-examples": COUNTS[name], "loss": LOSSES[name]}),
            }
        )
        return Message(content, reply_to=message)

    return app


def _failing(*, with_mod: bool) -> ClientApp:
    app = ClientApp(mods=[secure_mod] if with_mod else None)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise ValueError(f"{PATIENT} has {GLUCOSE} mmol/l")

    return app


def test_an_exception_at_a_site_tells_nobody_about_its_patients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    inner = LocalGrid(_failing(with_mod=True), make_sites(tmp_path), run_id=7)
    replies = ask(SecureGrid(inner), request())
    assert [reply.error.reason for reply in replies] == ["the work at the site failed"] * 4
    wire = b"".join(frame.payload for frame in inner.wire)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    printed = "".join(capfd.readouterr())
    for content in (wire, kept, caplog.text.encode(), printed.encode()):
        assert PATIENT.encode() not in content
        assert str(GLUCOSE).encode() not in content
    assert b'"kind": "ValueError"' in kept


def test_without_the_mod_the_text_of_an_exception_goes_to_the_server(tmp_path: Path) -> None:
    inner = LocalGrid(_failing(with_mod=False), make_sites(tmp_path), run_id=7)
    ask(inner, request())
    assert PATIENT.encode() in b"".join(frame.payload for frame in inner.wire)


def test_only_one_stage_carries_a_vector_and_it_is_uniform(tmp_path: Path) -> None:
    inner = local_grid(make_sites(tmp_path))
    ask(SecureGrid(inner), request(size=2000))
    sizes = {frame.stage: len(frame.payload) for frame in inner.wire if frame.direction == "to server"}
    assert sizes["mask"] > 2000 * 8
    assert all(size < 4000 for stage, size in sizes.items() if stage != "mask")
    masked = [frame.payload for frame in inner.wire if frame.direction == "to server" and frame.stage == "mask"]
    counts = np.bincount(np.frombuffer(b"".join(payload[-16_000:] for payload in masked), np.uint8), minlength=256)
    # 250 expected of each byte; seven standard deviations.
    assert np.all(np.abs(counts - 250) < 7 * np.sqrt(250))
