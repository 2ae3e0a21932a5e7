"""A pytest plugin: tests run in an order that a seed decides, so that none can lean on another."""

from __future__ import annotations

import hashlib
import os
import random
from typing import Any

import pytest

ORDER_SEED = "DISTLFM_ORDER_SEED"
"""Environment variable that says what `--order-seed` is where it is not given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--order-seed",
        default=os.environ.get(ORDER_SEED, ""),
        help="Run files, and the tests of each, in the order that follows from this: any text, or `random`.",
    )


def pytest_configure(config: pytest.Config) -> None:
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
