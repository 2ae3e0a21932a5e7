"""Cases of fields, on meshes of a few nodes."""

from __future__ import annotations

from tests.support.catalogue.case import Case

CASES: list[Case] = []
