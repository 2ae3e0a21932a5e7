"""Damaged bytes give a DataError or a report, never another exception."""

from __future__ import annotations

import gzip
import io
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.data import examine
from distlfm.errors import DataError

TEXT = b'id,t,gene,y,variance\na,0,"X",1,.1\na,1,X,2,.1\nb,0,X,,\nb,1,X,3,.2\nb,2,X,4,.2\n'


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "a", "b"], "t": [0.0, 1.0, 2.0], "y": [1.0, None, 2.0]}), file)
    return file.getvalue()


def _npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, times=np.arange(3.0), values=np.ones((2, 3)), outputs=np.array(["a", "b"]), mask=np.ones((2, 3), bool))
    return file.getvalue()


WHOLE = {
    "f.csv": TEXT,
    "f.csv.gz": gzip.compress(TEXT),
    "f.parquet": _parquet(),
    "f.npz": _npz(np.savez),
    "g.npz": _npz(np.savez_compressed),
}


@pytest.mark.parametrize("name", list(WHOLE))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_a_data_error_or_a_report(name: str, data: st.DataObject) -> None:
    damaged = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(bytes(damaged))
        with suppress(DataError):
            for problem in examine(path).set_aside:
                assert problem.file == str(path)
                assert problem.fix
