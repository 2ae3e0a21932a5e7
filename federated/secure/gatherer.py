"""The server's side of a secure sum: it passes boxes on, adds up masked vectors, and takes the masks off the sum.

It is given what arrived, by site, at each stage; whoever is not in it has dropped out. It needs no trust: what it may
learn is decided by the members.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distlfm.errors import WorkError
from distlfm.federated.secure.keys import add_mask, derive, is_signed, public_of
from distlfm.federated.secure.member import COMMITMENT, SELF_MASK, pair_key
from distlfm.federated.secure.messages import Advert, Boxes, Consent, Consents, Delivery, Reveal, Roster, Survivors
from distlfm.federated.secure.ring import Words
from distlfm.federated.secure.rules import threshold_of
from distlfm.federated.secure.shamir import join


class SumFailed(WorkError):
    """Too few sites are left for the sum, or their shares do not fit together. Nothing was learned."""


class Gatherer:
    """One secure sum. The methods are called once each, in the order in which they stand here."""

    def __init__(self, run: str, purpose: str, request: str, min_sites: int) -> None:
        self.run, self.purpose, self.request = run, purpose, request
        self._min_sites = min_sites
        self._commitments: dict[str, str] = {}
        self._total: Words = np.zeros(0, dtype=np.uint64)
        self.survivors: tuple[str, ...] = ()

    def enrol(self, adverts: Mapping[str, Advert], peers: Mapping[str, str] | None = None) -> Roster:
        """Who takes part. With `peers`, sites that are not among them or whose keys are not signed are left out."""
        accepted = [
            advert for site, advert in sorted(adverts.items()) if advert.site == site and self.knows(advert, peers)
        ]
        self._enough("gave keys", len(accepted), self._min_sites)
        self.roster = Roster(
            run=self.run,
            purpose=self.purpose,
            request=self.request,
            threshold=threshold_of(len(accepted)),
            adverts=tuple(accepted),
        )
        self._session = self.roster.session
        return self.roster

    def knows(self, advert: Advert, peers: Mapping[str, str] | None) -> bool:
        """Whether an advert is for this run and, where keys are known, signed with the key of the site it names."""
        return advert.run == self.run and (peers is None or _known(advert, peers))

    def deliver(self, boxes: Mapping[str, Boxes]) -> dict[str, Delivery]:
        """The boxes of all who sealed one for each of the others, by receiver."""
        sites = set(self.roster.sites)
        senders = {
            site: sent
            for site, sent in boxes.items()
            if site in sites and sent.session == self._session.hex() and set(sent.boxes) == sites - {site}
        }
        self._enough("shared their secrets", len(senders), max(self._min_sites, self.roster.threshold))
        self._commitments = {site: sent.commitment for site, sent in senders.items()}
        return {
            receiver: Delivery(
                session=self._session.hex(),
                boxes={sender: sent.boxes[receiver] for sender, sent in sorted(senders.items()) if sender != receiver},
            )
            for receiver in sorted(senders)
        }

    def gather(self, vectors: Mapping[str, Words]) -> Survivors:
        """Add up the masked vectors [N], which have one length."""
        arrived = sorted(set(vectors) & set(self._commitments))
        self._enough("sent a masked vector", len(arrived), max(self._min_sites, self.roster.threshold))
        self._total = np.zeros_like(vectors[arrived[0]])
        for site in arrived:
            self._total += vectors[site]
        self.survivors = tuple(arrived)
        return Survivors(session=self._session.hex(), sites=self.survivors)

    def agree(self, consents: Mapping[str, Consent]) -> Consents:
        """The signatures under the list of survivors."""
        signed = {
            site: sent.signature
            for site, sent in sorted(consents.items())
            if site in self.survivors and sent.session == self._session.hex()
        }
        self._enough("signed who is in the sum", len(signed), max(self._min_sites, self.roster.threshold))
        cast = {site: consents[site].ballot for site in signed}
        ballots = {site: ballot for site, ballot in cast.items() if ballot is not None}
        heads = {site: head for site in signed if (head := consents[site].head) is not None}
        return Consents(session=self._session.hex(), signatures=signed, ballots=ballots, heads=heads)

    def unmask(self, reveals: Mapping[str, Reveal]) -> Words:
        """The sum [N] of the survivors' vectors."""
        dropped = sorted(set(self._commitments) - set(self.survivors))
        helpers = [
            (self.roster.sites.index(site) + 1, sent)
            for site, sent in sorted(reveals.items())
            if site in self.survivors
            and sent.session == self._session.hex()
            and set(sent.seeds) == set(self.survivors)
            and set(sent.keys) == set(dropped)
        ]
        self._enough("helped to unmask", len(helpers), self.roster.threshold)
        helpers = helpers[: self.roster.threshold]
        total = self._total.copy()
        for site in self.survivors:
            seed = _join(site, {point: sent.seeds[site] for point, sent in helpers})
            if derive(seed, self._session, COMMITMENT).hex() != self._commitments[site]:
                raise SumFailed(f"The shares of {site}'s seed do not fit together.", "Repeat the round.")
            add_mask(total, derive(seed, self._session, SELF_MASK), take_away=True)
        for site in dropped:
            secret = _join(site, {point: sent.keys[site] for point, sent in helpers}).hex()
            if public_of(secret) != self.roster.of(site).mask_key:
                raise SumFailed(f"The shares of {site}'s key do not fit together.", "Repeat the round.")
            self._take_off(total, site, secret)
        return total

    def _take_off(self, total: Words, dropped: str, secret: str) -> None:
        """Remove the masks that the survivors share with a site that is not in the sum."""
        for site in self.survivors:
            pair = pair_key(secret, self.roster.of(site).mask_key, self._session, (site, dropped))
            add_mask(total, pair, take_away=site < dropped)

    def _enough(self, did: str, count: int, needed: int) -> None:
        if count < needed:
            raise SumFailed(f"{count} sites {did}, and {needed} are needed.", "Nothing was learned; repeat the round.")


def _known(advert: Advert, peers: Mapping[str, str]) -> bool:
    return advert.site in peers and is_signed(peers[advert.site], advert.signature, Advert.label, advert.signed())


def _join(site: str, shares: Mapping[int, str]) -> bytes:
    try:
        return join({point: bytes.fromhex(share) for point, share in shares.items()})
    except ValueError:
        raise SumFailed(f"The shares of {site} do not fit together.", "Repeat the round.") from None
