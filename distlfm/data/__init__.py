"""Observations in, checked instances out: readers of CSV, Parquet, NumPy archives and folders of them."""

from distlfm.data import catalog
from distlfm.data import csv as _csv
from distlfm.data import npz as _npz
from distlfm.data import parquet as _parquet
from distlfm.data.base import ColumnMap, ReadReport
from distlfm.data.catalog import check, list_datasets
from distlfm.data.frames import read_frame, read_xarray
from distlfm.data.npz import write_npz
from distlfm.data.reading import examine, iter_instances, iter_reports, read

# Importing a reader's file registers it; a new reader is one more name here.
READERS = (_csv.read_csv, _npz.read_npz, _parquet.read_parquet)

__all__ = [
    "ColumnMap",
    "ReadReport",
    "catalog",
    "check",
    "examine",
    "iter_instances",
    "iter_reports",
    "list_datasets",
    "read",
    "read_frame",
    "read_xarray",
    "write_npz",
]
