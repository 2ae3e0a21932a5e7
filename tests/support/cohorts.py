"""Members of a secure sum in memory, and a gatherer that may be told to cheat or to lose some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure import member
from distlfm.federated.secure.gatherer import Gatherer
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.secure.member import MemberState
from distlfm.federated.secure.messages import Advert, Boxes, Consent, Consents, Delivery, Reveal, Roster, Survivors
from distlfm.federated.secure.ring import Words
from distlfm.federated.secure.rules import Rules, threshold_of

RUN, PURPOSE, REQUEST = "7", "train", "ab" * 32
NAMES = ("east", "north", "south", "west")


@dataclass
class Member:
    """One site with its key and what it remembers."""

    rules: Rules
    key: Ed25519PrivateKey
    state: MemberState | None = None

    def advertise(self) -> Advert:
        self.state = member.advertise(self.rules, self.key, RUN)
        return self.state.advert

    def share(self, roster: Roster) -> Boxes:
        self.state, boxes = member.share(self.rules, self.key, self._state, roster)
        return boxes

    def mask(self, delivery: Delivery, words: Words) -> Words:
        self.state = member.receive(self.rules, self._state, delivery)
        self.state, total = member.masked(self.rules, self.state, words)
        return total

    def consent(self, survivors: Survivors) -> Consent:
        self.state, said = member.consent(self.rules, self.key, self._state, survivors)
        return said

    def reveal(self, consents: Consents) -> Reveal:
        said = member.reveal(self.rules, self.key, self._state, consents)
        self.state = None
        return said

    @property
    def _state(self) -> MemberState:
        assert self.state is not None
        return self.state


def members(names: Iterable[str] = NAMES, min_cohort: int = 3, whole: Iterable[str] = ()) -> dict[str, Member]:
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    pins = {name: public_hex(key) for name, key in keys.items()}
    return {
        name: Member(
            Rules(name, {peer: pin for peer, pin in pins.items() if peer != name}, min_cohort, frozenset(whole)), key
        )
        for name, key in keys.items()
    }


@dataclass
class Exchange:
    """A sum stage by stage. `lost`: sites that are gone before the stage of that name."""

    sites: dict[str, Member]
    purpose: str = PURPOSE
    lost: dict[str, set[str]] = field(default_factory=dict)
    min_sites: int = 3

    def __post_init__(self) -> None:
        self.gatherer = Gatherer(RUN, self.purpose, REQUEST, self.min_sites)
        self.vectors: dict[str, Words] = {}

    def left(self, stage: str) -> dict[str, Member]:
        order = ["advertise", "share", "mask", "consent", "reveal"]
        gone = {site for name in order[: order.index(stage) + 1] for site in self.lost.get(name, set())}
        return {name: one for name, one in self.sites.items() if name not in gone}

    def enrol(self) -> Roster:
        return self.gatherer.enrol({name: one.advertise() for name, one in self.left("advertise").items()})

    def share(self, roster: Roster) -> dict[str, Delivery]:
        return self.gatherer.deliver({name: one.share(roster) for name, one in self.left("share").items()})

    def mask(self, deliveries: dict[str, Delivery], value: Callable[[str], Words]) -> Survivors:
        self.vectors = {
            name: one.mask(deliveries[name], value(name))
            for name, one in self.left("mask").items()
            if name in deliveries
        }
        return self.gatherer.gather(self.vectors)

    def consent(self, survivors: Survivors) -> Consents:
        helpers = {name: one for name, one in self.left("consent").items() if name in survivors.sites}
        return self.gatherer.agree({name: one.consent(survivors) for name, one in helpers.items()})

    def reveal(self, consents: Consents) -> Words:
        helpers = {name: one for name, one in self.left("reveal").items() if name in consents.signatures}
        return self.gatherer.unmask({name: one.reveal(consents) for name, one in helpers.items()})

    def run(self, value: Callable[[str], Words]) -> Words:
        return self.reveal(self.consent(self.mask(self.share(self.enrol()), value)))


def small_words(name: str, count: int = 50) -> Words:
    """A vector that is known by its site's name."""
    return np.arange(count, dtype=np.uint64) + np.uint64(1000 * (NAMES.index(name) + 1))


@contextmanager
def refused(reason: Reason) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.reason is reason


def roster_of(adverts: dict[str, Advert], **changes: object) -> Roster:
    chosen = tuple(advert for _, advert in sorted(adverts.items()))
    told = {"run": RUN, "purpose": "train", "request": REQUEST, "threshold": threshold_of(len(chosen))}
    return Roster.model_validate({**told, "adverts": chosen, **changes})


def adverts_of(sites: dict[str, Member]) -> dict[str, Advert]:
    return {name: one.advertise() for name, one in sites.items()}
