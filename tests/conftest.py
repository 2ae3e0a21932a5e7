"""What all tests share."""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from distlfm.mechanisms.build import import_plugins

ORDER_SEED = "DISTLFM_ORDER_SEED"
"""Environment variable that says what `--order-seed` is where it is not given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--order-seed",
        default=os.environ.get(ORDER_SEED, ""),
        help="Run files, and the tests of each, in the order that follows from this: any text, or `random`.",
    )
    parser.addoption(
        "--plugin",
        action="append",
        default=[],
        help="A module whose likelihoods and methods are put through the suites of tests/contracts, as those shipped.",
    )


def pytest_configure(config: pytest.Config) -> None:
    import_plugins(config.option.plugin)
    given = getattr(config, "workerinput", {})
    if ORDER_SEED in given:
        config.option.order_seed = given[ORDER_SEED]
    elif config.option.order_seed == "random":
        config.option.order_seed = str(random.SystemRandom().randrange(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The workers of xdist take the order that was drawn here."""
    node.workerinput[ORDER_SEED] = node.config.option.order_seed


def pytest_sessionstart(session: pytest.Session) -> None:
    seed, terminal = session.config.option.order_seed, session.config.pluginmanager.get_plugin("terminalreporter")
    if seed and terminal is not None:  # not a header, which -q leaves out
        terminal.write_line(f"[order] --order-seed {seed} runs the tests in this order again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before pytest brings together the tests that share a fixture with parameters."""
    seed = config.option.order_seed
    if seed:
        items.sort(key=lambda item: (_place(seed, item.nodeid.partition("::")[0]), _place(seed, item.nodeid)))


def _place(seed: str, name: str) -> bytes:
    """Of a name alone: any part of the tests is in the same order as in the whole."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


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
