"""Replies are fetched each for itself: a site that died while it sent holds nobody up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from distlfm.federated.link import flower
from distlfm.federated.link.flower import QuickGrid

DEAD = "dead"


class Wire(QuickGrid):
    """Replies of three sites are there at once; of a fourth, only the beginning."""

    def __init__(self) -> None:
        self.patience = 0.0

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        return list(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        for one in message_ids:
            if one == DEAD:
                time.sleep(self.patience)
                return []
        return [SimpleNamespace(to=one) for one in message_ids]


def test_a_reply_that_does_not_end_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    monkeypatch.setattr(flower, "wait_for_parts", lambda seconds: setattr(wire, "patience", seconds))
    replies = list(wire.send_and_receive([DEAD, "north", "south", "east"], timeout=0.5))  # type: ignore[list-item]
    assert [reply.to for reply in replies] == ["north", "south", "east"]  # type: ignore[attr-defined]
    assert wire.patience == 0.5


def test_nothing_sent_is_nothing_received() -> None:
    assert list(Wire().send_and_receive([], timeout=0.5)) == []
