"""A fleet's results on the disk: a Zarr directory that several processes fill block by block."""

from distlfm.store.block import pack as pack
from distlfm.store.layout import SCHEMA as SCHEMA
from distlfm.store.layout import STATUSES as STATUSES
from distlfm.store.layout import StoreSpec as StoreSpec
from distlfm.store.lock import Holder as Holder
from distlfm.store.lock import driver_lock as driver_lock
from distlfm.store.lock import holder as holder
from distlfm.store.lock import part_lock as part_lock
from distlfm.store.lock import turn as turn
from distlfm.store.metadata import content_hash as content_hash
from distlfm.store.metadata import find_store as find_store
from distlfm.store.metadata import is_store as is_store
from distlfm.store.metadata import read_progress as read_progress
from distlfm.store.metadata import write_progress as write_progress
from distlfm.store.store import Store as Store
