"""A fleet's results on the disk: a Zarr directory that several processes fill block by block."""

from distlfm.store.block import pack
from distlfm.store.layout import SCHEMA, STATUSES, StoreSpec
from distlfm.store.lock import Holder, driver_lock, holder, part_lock, turn
from distlfm.store.metadata import content_hash, find_store, is_store, read_progress, write_progress
from distlfm.store.store import Store

__all__ = [
    "SCHEMA",
    "STATUSES",
    "Holder",
    "Store",
    "StoreSpec",
    "content_hash",
    "driver_lock",
    "find_store",
    "holder",
    "is_store",
    "pack",
    "part_lock",
    "read_progress",
    "turn",
    "write_progress",
]
