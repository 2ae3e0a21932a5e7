"""What members and gatherer say to each other, as canonical JSON: no pickle, and nothing unknown is read."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.rules import MAX_SITES, PROTOCOL
from distlfm.federated.secure.shamir import SHARE_BYTES

MAX_BYTES = 8_000_000

SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Purpose = Annotated[str, Field(pattern=r"^(train|evaluate|query)(\.[A-Za-z_][A-Za-z0-9_]{0,63})?$")]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Share = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SHARE_BYTES}}}$")]
Box = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * (2 * SHARE_BYTES + 16)}}}$")]
Part = tuple[
    Annotated[str, Field(max_length=200)],
    Literal["weight", "metric", "difference", "array"],
    Annotated[str, Field(pattern=r"^(float(16|32|64)|u?int(8|16|32|64)|complex(64|128))$")],
    Annotated[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Field(max_length=16)],
]
Sites = Annotated[tuple[SiteName, ...], Field(max_length=MAX_SITES)]


class SumMessage(BaseModel):
    """Base of all that is said: immutable, strict, with one way to write it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    label: ClassVar[str]

    def to_bytes(self) -> bytes:
        """The same bytes for the same content, everywhere."""
        return canonical(self.model_dump(mode="json"))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what somebody else wrote; raises Refused for all that is not exactly this message."""
        if len(content) > MAX_BYTES:
            raise Refused(Reason.MALFORMED, f"A {cls.__name__} of {len(content)} bytes.")
        try:
            message = cls.model_validate_json(content)
        except ValidationError as error:
            raise Refused(Reason.MALFORMED, f"{cls.__name__}: {error.error_count()} faults.") from None
        if message.to_bytes() != content:  # repeated keys, other spellings
            raise Refused(Reason.MALFORMED, f"{cls.__name__} is not written in the canonical way.")
        return message


def canonical(content: Any) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


class Call(SumMessage):
    """The gatherer asks for keys."""

    run: RunName
    purpose: Purpose


class Head(SumMessage):
    """The newest line of a site's audit log, signed by that site. The log's receipts hold the ledger's head."""

    number: Annotated[int, Field(ge=0)]
    digest: Hex32
    signature: Signature

    label: ClassVar[str] = "head"

    @staticmethod
    def signed(site: str, number: int, digest: str) -> bytes:
        """What the signature is about."""
        return canonical({"site": site, "number": number, "digest": digest})


class Advert(SumMessage):
    """A member's fresh public keys for one sum of a run, signed by its site.

    seen: what the member last saw of the others' audit logs, so that one who went back to an old copy is reminded.
    """

    run: RunName
    site: SiteName
    channel_key: Hex32
    mask_key: Hex32
    seen: dict[SiteName, Head] = {}
    signature: Signature

    label: ClassVar[str] = "advert"

    def signed(self) -> bytes:
        """What the signature is about."""
        return canonical(self.model_dump(mode="json", exclude={"signature"}))


class Roster(SumMessage):
    """Who takes part in which sum. Its hash names the session; every key of the session is derived with it."""

    run: RunName
    purpose: Purpose
    request: Hex32
    threshold: Annotated[int, Field(ge=1, le=MAX_SITES)]
    adverts: Annotated[tuple[Advert, ...], Field(max_length=MAX_SITES)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.sites) != sorted(set(self.sites)):
            raise ValueError("sites come once each, in order")
        return self

    @property
    def sites(self) -> tuple[str, ...]:
        """Names in order; a site's place gives the point of its shares."""
        return tuple(advert.site for advert in self.adverts)

    def of(self, site: str) -> Advert:
        """The advert of a site that takes part."""
        return next(advert for advert in self.adverts if advert.site == site)

    @property
    def session(self) -> bytes:
        """Hash over all of it."""
        return hashlib.sha256(f"{PROTOCOL} session".encode() + b"\0" + self.to_bytes()).digest()


class Boxes(SumMessage):
    """A member's sealed shares, by receiver; and a hash by which its seed is known when it is put together again."""

    session: Hex32
    boxes: dict[SiteName, Box]
    commitment: Hex32


class Delivery(SumMessage):
    """What the other members sealed for one member, by sender. Senders and receiver are those who mask."""

    session: Hex32
    boxes: dict[SiteName, Box]


class Survivors(SumMessage):
    """Whose masked vectors have arrived."""

    session: Hex32
    sites: Sites


Vote = Literal["for", "against"]
"""Whether a model is better than the one before for a site's own patients that choose."""


class Ballot(SumMessage):
    """A site's vote on the model of a session, signed. The session is bound to run, roster and both models."""

    vote: Vote
    signature: Signature

    label: ClassVar[str] = "vote"

    @staticmethod
    def signed(session: str, vote: Vote) -> bytes:
        """What the signature is about."""
        return canonical({"session": session, "vote": vote})


class Consent(SumMessage):
    """A member's signature under who is in the sum, its vote where it was asked for one, and its audit log's head."""

    session: Hex32
    signature: Signature
    ballot: Ballot | None = None
    head: Head | None = None


class Consents(SumMessage):
    """The signatures of the members under the same list, by site, their votes, and the heads of their logs."""

    session: Hex32
    signatures: dict[SiteName, Signature]
    ballots: dict[SiteName, Ballot] = {}
    heads: dict[SiteName, Head] = {}


class Reveal(SumMessage):
    """Shares: of the seeds of those in the sum, and of the mask keys of those who dropped out after sharing.

    ahead: keys for the next sum of the run.
    """

    session: Hex32
    seeds: dict[SiteName, Share]
    keys: dict[SiteName, Share]
    ahead: Advert | None = None


class Fields(SumMessage):
    """The public form of a masked vector: its parts in order, as (name, kind, dtype, shape)."""

    session: Hex32
    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=100_000)]


def agreement(roster: Roster, masking: frozenset[str], survivors: frozenset[str]) -> bytes:
    """What members sign: who masked, and who of them is in the sum."""
    return canonical({"session": roster.session.hex(), "masking": sorted(masking), "survivors": sorted(survivors)})
