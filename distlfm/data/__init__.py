"""Observations in, checked instances out: readers of CSV, Parquet, NumPy archives and folders of them."""

# Importing a reader's file registers it; a new reader is one more name here.
from distlfm.data import catalog as catalog
from distlfm.data import csv as csv
from distlfm.data import npz as npz
from distlfm.data import parquet as parquet
from distlfm.data.base import ColumnMap as ColumnMap
from distlfm.data.base import ReadReport as ReadReport
from distlfm.data.catalog import check as check
from distlfm.data.catalog import list_datasets as list_datasets
from distlfm.data.frames import read_frame as read_frame
from distlfm.data.frames import read_xarray as read_xarray
from distlfm.data.npz import write_npz as write_npz
from distlfm.data.reading import examine as examine
from distlfm.data.reading import iter_instances as iter_instances
from distlfm.data.reading import iter_reports as iter_reports
from distlfm.data.reading import read as read
