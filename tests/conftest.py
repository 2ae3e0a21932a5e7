"""What all tests share."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from distlfm.mechanisms.build import import_plugins

pytest_plugins = ("tests.support.order",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plugin",
        action="append",
        default=[],
        help="A module whose classes and readers are put through the suites of tests/contracts, as those shipped.",
    )


def pytest_configure(config: pytest.Config) -> None:
    import_plugins(config.option.plugin)
    hear_interrupts()


def hear_interrupts() -> None:
    """A shell has its background jobs ignore Ctrl-C, and every process that a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices of tests are small: more threads only make them wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def logging_kept() -> Iterator[None]:
    """The command line sets handlers and level of its process, which tests share."""
    root = logging.getLogger()
    before, handlers = root.level, root.handlers[:]
    yield
    logging.captureWarnings(False)
    root.setLevel(before)
    root.handlers[:] = handlers


@pytest.fixture(autouse=True, scope="module")
def _logging_of_modules() -> Iterator[None]:
    with logging_kept():
        yield


@pytest.fixture(autouse=True)
def _logging_of_tests() -> Iterator[None]:
    with logging_kept():
        yield
