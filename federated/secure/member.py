"""A site's side of a secure sum: state in, state out, and a refusal for every step that does not follow.

The stages, each entered once and in this order: keys are advertised, secrets are shared, boxes are received, the
vector is masked, the list of survivors is signed, shares are revealed. A gatherer that cheats gets no second answer of
any stage, so it never sees two masked vectors under the same masks, nor both secrets of one site.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.keys import (
    BadKey,
    add_mask,
    agree,
    derive,
    is_signed,
    new_secret,
    public_hex,
    public_of,
    seal,
    sign,
    unseal,
)
from distlfm.federated.secure.messages import (
    Advert,
    Ballot,
    Boxes,
    Consent,
    Consents,
    Delivery,
    Head,
    Reveal,
    Roster,
    Survivors,
    Vote,
    agreement,
)
from distlfm.federated.secure.ring import Words
from distlfm.federated.secure.rules import Rules, threshold_of
from distlfm.federated.secure.shamir import SHARE_BYTES, split

CONSENT = "consent"
SELF_MASK, PAIR_MASK, COMMITMENT = "self mask", "pair mask", "commitment"


class Stage(StrEnum):
    """What a member did last."""

    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKING = "masking"
    MASKED = "masked"
    CONSENTED = "consented"


class MemberState(BaseModel):
    """All that a member has to remember between two messages. It holds secrets, and never a site's values.

    channel_secret, mask_secret, seed: private, gone as soon as they have served. shares: of each site's seed and mask
    key, by site, its own among them. masking: sites whose masks are in the vector. survivors: sites in the sum.
    covered: whether the vector has noise that covers what a site contributes. vote: on the model that was measured.
    spare: how many sites may drop out in between, so that enough noise is left; None where that does not count.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: Stage
    advert: Advert
    channel_secret: str = ""
    mask_secret: str = ""
    seed: str = ""
    roster: Roster | None = None
    shares: dict[str, tuple[str, str]] = {}
    masking: frozenset[str] = frozenset()
    survivors: frozenset[str] = frozenset()
    covered: bool = False
    vote: Vote | None = None
    spare: int | None = None

    @property
    def cohort(self) -> Roster:
        """The roster of a state that has one."""
        assert self.roster is not None, "the stage says that there is a roster"
        return self.roster


def advertise(rules: Rules, key: Ed25519PrivateKey, run: str, seen: Mapping[str, Head] | None = None) -> MemberState:
    """Fresh keys for one sum; what the gatherer gets is `state.advert`. seen: heads of the others' audit logs."""
    channel, masking = new_secret(), new_secret()
    unsigned = Advert(
        run=run,
        site=rules.site,
        channel_key=public_of(channel),
        mask_key=public_of(masking),
        seen=dict(seen or {}),
        signature="0" * 128,
    )
    advert = unsigned.model_copy(update={"signature": sign(key, Advert.label, unsigned.signed())})
    return MemberState(stage=Stage.ADVERTISED, advert=advert, channel_secret=channel, mask_secret=masking)


def share(rules: Rules, key: Ed25519PrivateKey, state: MemberState, roster: Roster) -> tuple[MemberState, Boxes]:
    """Accept who takes part, and seal a share of both secrets for each of the others."""
    _at(state, Stage.ADVERTISED)
    check_roster(rules, public_hex(key), state.advert, roster)
    session, seed = roster.session, secrets.token_bytes(32)
    seed_shares = split(seed, roster.threshold, len(roster.sites))
    key_shares = split(bytes.fromhex(state.mask_secret), roster.threshold, len(roster.sites))
    boxes, own = {}, ("", "")
    for site, of_seed, of_key in zip(roster.sites, seed_shares, key_shares, strict=True):
        if site == rules.site:
            own = (of_seed.hex(), of_key.hex())
        else:
            box_key = _agree(state.channel_secret, roster.of(site).channel_key, session, _way(rules.site, site))
            boxes[site] = seal(box_key, of_seed + of_key)
    commitment = derive(seed, session, COMMITMENT).hex()
    shared = state.model_copy(
        update={"stage": Stage.SHARED, "seed": seed.hex(), "roster": roster, "shares": {rules.site: own}}
    )
    return shared, Boxes(session=session.hex(), boxes=boxes, commitment=commitment)


def check_roster(rules: Rules, public: str, own: Advert, roster: Roster) -> None:
    """Refuse a cohort that the site does not know or want, or keys that their owners have not signed."""
    sites = set(roster.sites)
    if rules.site not in sites or roster.of(rules.site) != own:
        raise Refused(Reason.STAGE, "The roster does not hold the keys that this site gave last.")
    unknown = sites - rules.everybody
    if unknown:
        raise Refused(Reason.COHORT, f"Not pinned here: {', '.join(sorted(unknown))}.")
    if len(sites) < rules.min_cohort:
        raise Refused(Reason.COHORT, f"{len(sites)} sites; the policy asks for {rules.min_cohort}.")
    if rules.must_be_whole(roster.purpose) and sites != rules.everybody:
        raise Refused(Reason.COHORT_FIXED, f"Missing: {', '.join(sorted(rules.everybody - sites))}.")
    if roster.threshold != threshold_of(len(sites)):
        raise Refused(Reason.THRESHOLD, f"{roster.threshold} of {len(sites)} sites.")
    pins = {**rules.peers, rules.site: public}
    for advert in roster.adverts:
        if advert.run != own.run or not is_signed(pins[advert.site], advert.signature, Advert.label, advert.signed()):
            raise Refused(Reason.KEY, f"The keys of {advert.site}.")
    keys = [key for advert in roster.adverts for key in (advert.channel_key, advert.mask_key)]
    if roster.run != own.run or len(set(keys)) != len(keys):
        raise Refused(Reason.KEY, "Another run, or one key twice.")


def receive(rules: Rules, state: MemberState, delivery: Delivery) -> MemberState:
    """Open the boxes of the others. Whoever could seal one has used this site's fresh key and seen the same roster."""
    _at(state, Stage.SHARED, delivery.session)
    roster = state.cohort
    masking = frozenset({rules.site, *delivery.boxes})
    if rules.site in delivery.boxes or not masking <= set(roster.sites):
        raise Refused(Reason.SURVIVORS, "A box of a site that is not in the roster.")
    _enough(rules, roster, masking)
    shares = dict(state.shares)
    for site, box in delivery.boxes.items():
        box_key = _agree(state.channel_secret, roster.of(site).channel_key, roster.session, _way(site, rules.site))
        try:
            content = unseal(box_key, box)
        except BadKey:
            raise Refused(Reason.KEY, f"The box of {site} was not sealed for this session.") from None
        shares[site] = (content[:SHARE_BYTES].hex(), content[SHARE_BYTES:].hex())
    return state.model_copy(update={"stage": Stage.MASKING, "channel_secret": "", "shares": shares, "masking": masking})


def masked(rules: Rules, state: MemberState, words: Words) -> tuple[MemberState, Words]:
    """Words [N] under the site's own mask and one mask with each other site; the secrets of the masks are forgotten."""
    _at(state, Stage.MASKING)
    roster, session = state.cohort, state.cohort.session
    total = words.copy()
    add_mask(total, derive(bytes.fromhex(state.seed), session, SELF_MASK))
    for site in state.masking - {rules.site}:
        pair = pair_key(state.mask_secret, roster.of(site).mask_key, session, (rules.site, site))
        add_mask(total, pair, take_away=rules.site > site)
    return state.model_copy(update={"stage": Stage.MASKED, "mask_secret": "", "seed": ""}), total


def pair_key(secret: str, public: str, session: bytes, pair: tuple[str, str]) -> bytes:
    """Return the key of the mask that two sites share: the first by name adds it, the other takes it away."""
    return _agree(secret, public, session, f"{PAIR_MASK} {' '.join(sorted(pair))}")


def consent(
    rules: Rules, key: Ed25519PrivateKey, state: MemberState, survivors: Survivors
) -> tuple[MemberState, Consent]:
    """Sign who is in the sum, once: no site signs two lists of a session."""
    _at(state, Stage.MASKED, survivors.session)
    listed = frozenset(survivors.sites)
    if len(listed) != len(survivors.sites) or rules.site not in listed or not listed <= state.masking:
        raise Refused(Reason.SURVIVORS, "Survivors that are listed twice or did not mask.")
    _enough(rules, state.cohort, listed)
    if state.spare is not None and len(state.masking - listed) > state.spare:
        raise Refused(Reason.SURVIVORS, f"The noise in the sum bears {state.spare} drop-outs.")
    signature = sign(key, CONSENT, agreement(state.cohort, state.masking, listed))
    done = state.model_copy(update={"stage": Stage.CONSENTED, "survivors": listed})
    ballot = None if state.vote is None else Ballot(vote=state.vote, signature=_signed_vote(key, state))
    return done, Consent(session=survivors.session, signature=signature, ballot=ballot)


def _signed_vote(key: Ed25519PrivateKey, state: MemberState) -> str:
    assert state.vote is not None
    return sign(key, Ballot.label, Ballot.signed(state.cohort.session.hex(), state.vote))


def votes_in(consents: Consents, pins: Mapping[str, str]) -> dict[str, Vote]:
    """Return the votes by site that their own sites have signed for this session; others count as none."""
    return {
        site: ballot.vote
        for site, ballot in sorted(consents.ballots.items())
        if site in pins
        and is_signed(pins[site], ballot.signature, Ballot.label, Ballot.signed(consents.session, ballot.vote))
    }


def signed_head(rules: Rules, key: Ed25519PrivateKey, number: int, digest: str) -> Head:
    """Return the newest line of the site's own audit log as the others are shown it."""
    return Head(number=number, digest=digest, signature=sign(key, Head.label, Head.signed(rules.site, number, digest)))


def heads_in(heads: Mapping[str, Head], pins: Mapping[str, str]) -> dict[str, Head]:
    """Return the heads by site that their own sites have signed; others count as none."""
    return {
        site: head
        for site, head in sorted(heads.items())
        if site in pins
        and is_signed(pins[site], head.signature, Head.label, Head.signed(site, head.number, head.digest))
    }


def seen_of(roster: Roster, rules: Rules, public: str) -> Head | None:
    """Return the newest line of this site's own log that another member has seen; only what it signed itself counts."""
    said = (advert.seen.get(rules.site) for advert in roster.adverts)
    known = [head for head in said if head is not None and heads_in({rules.site: head}, {rules.site: public})]
    return max(known, key=lambda head: head.number, default=None)


def reveal(rules: Rules, key: Ed25519PrivateKey, state: MemberState, consents: Consents) -> Reveal:
    """Shares for the sum that enough sites signed; forget the state before this is sent.

    Of a site in the sum the seed, of one that dropped out the mask key: which it is follows from the signed list, so
    no gatherer can have both.
    """
    _at(state, Stage.CONSENTED, consents.session)
    roster, signed = state.cohort, agreement(state.cohort, state.masking, state.survivors)
    pins = {**rules.peers, rules.site: public_hex(key)}
    for site, signature in consents.signatures.items():
        if site not in state.survivors or not is_signed(pins[site], signature, CONSENT, signed):
            raise Refused(Reason.CONSENT, f"{site} has not signed the list that this site signed.")
    if len(consents.signatures) < max(roster.threshold, rules.min_cohort):
        raise Refused(Reason.CONSENT, f"{len(consents.signatures)} signatures.")
    cast = consents.ballots.get(rules.site)
    if state.vote is not None and rules.site in consents.signatures and (cast is None or cast.vote != state.vote):
        raise Refused(Reason.CONSENT, "This site's own vote is not among the votes.")
    return Reveal(
        session=consents.session,
        seeds={site: state.shares[site][0] for site in sorted(state.survivors)},
        keys={site: state.shares[site][1] for site in sorted(state.masking - state.survivors)},
    )


def _at(state: MemberState, stage: Stage, session: str | None = None) -> None:
    if state.stage != stage:
        raise Refused(Reason.STAGE, f"The last step was {state.stage}; this one follows on {stage}.")
    if session is not None and session != state.cohort.session.hex():
        raise Refused(Reason.STAGE, "A message of another session.")


def _enough(rules: Rules, roster: Roster, left: frozenset[str]) -> None:
    if len(left) < max(roster.threshold, rules.min_cohort):
        raise Refused(Reason.SURVIVORS, f"{len(left)} of {len(roster.sites)} sites are left.")
    if rules.must_be_whole(roster.purpose) and left != set(roster.sites):
        raise Refused(Reason.COHORT_FIXED, f"Dropped out: {', '.join(sorted(set(roster.sites) - left))}.")


def _agree(secret: str, public: str, session: bytes, label: str) -> bytes:
    try:
        return agree(secret, public, session, label)
    except BadKey:
        raise Refused(Reason.KEY, "A public key with which nothing secret can be agreed.") from None


def _way(sender: str, receiver: str) -> str:
    return f"box {sender} to {receiver}"
