"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

SHARED = {"slurm"}
"""Folders whose tests all share what they start; elsewhere those of one file do."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests that share what they start run in one process, one after another, when tests run side by side."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            folder = item.path.parent.name
            item.add_marker(pytest.mark.xdist_group(folder if folder in SHARED else str(item.path)))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices of tests are small: more threads only make them wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
