"""The site's side of secure aggregation under Flower: `ClientApp(mods=[secure_mod])`.

The site's policy is asked first; what is outside it, or outside secure aggregation, is refused. The app is called for
its answer in one stage only, and what leaves is the masked answer. Whatever goes wrong, the server gets a reason
from a fixed list and no more: an exception's own text may hold values, so not even the site's log gets it.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from distlfm.cluster.blocks.job import failure_of
from distlfm.errors import StorageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure import member
from distlfm.federated.secure.member import MemberState, Stage
from distlfm.federated.secure.memory import Drafts, Memory, Usage
from distlfm.federated.secure.messages import Call, Consents, Delivery, Fields, Roster, SumMessage, Survivors, canonical
from distlfm.federated.secure.noise import SumNoise
from distlfm.federated.secure.records import bits_of, flatten, request_digest, within
from distlfm.federated.secure.ring import encode
from distlfm.federated.setup.identity import load_signing_key
from distlfm.federated.site.ledger import BudgetSpent
from distlfm.federated.site.policy import SitePolicy, check_examples, check_message, check_package, policy_of
from distlfm.store.files import is_full

RECORD, STAGE, BODY, VECTOR = "secagg", "stage", "body", "vector"
KEYS, SHARES, MASK, CONSENT, UNMASK = "keys", "shares", "mask", "consent", "unmask"
WEIGHT = "num-examples"
NOISE, PART, LOST = "noise", "part ", "lost"
"""The record of an app's reply that says which noise is added, and what is in it."""


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer one message of a secure sum, or refuse it."""
    audit: AuditLog | None = None
    run, facts = str(context.run_id), {"purpose": message.metadata.message_type, "stage": stage_of(message)}
    try:
        policy = policy_of(context)
        audit = AuditLog(policy.audit)
        site = Answering(policy, load_signing_key(policy.signing_key), Memory(policy.state), audit, run)
        return Message(site.answer(message, context, call_next), reply_to=message)
    except Refused as refused:
        reason, facts = refused.reason, {**facts, "reason": refused.reason.name, "detail": refused.detail}
    except BudgetSpent:
        reason, facts = Reason.BUDGET, {**facts, "reason": Reason.BUDGET.name}
    except Exception as error:  # whatever it is, its text stays here
        failure = failure_of(error)
        reason = Reason.DISK if is_full(error) else Reason.FAILED
        facts = {**facts, "reason": reason.name, "kind": failure.kind, "at": failure.where}
    _note(audit, run, facts)
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason.value), reply_to=message)


def _note(audit: AuditLog | None, run: str, facts: dict[str, str]) -> None:
    """Log a refusal; where that fails, the server still learns nothing but the reason."""
    try:
        if audit is not None:
            audit.append("refused", run, **facts)
            return
    except StorageError as error:
        facts = {**facts, "log": error.cause}
    logging.getLogger(__name__).error("A message was refused: %s", facts)


def stage_of(message: Message) -> str:
    """The stage of a secure sum that a message is of; empty if it is of none."""
    record = message.content.config_records.get(RECORD) if message.has_content() else None
    stage = record.get(STAGE) if record is not None else None
    return stage if stage in (KEYS, SHARES, MASK, CONSENT, UNMASK) else ""


def with_noise(reply: RecordDict, noise: SumNoise | None) -> RecordDict:
    """Say in an app's reply which noise its numbers get in the sum."""
    if noise is not None:
        lost = {} if noise.lost is None else {LOST: noise.lost}
        reply[NOISE] = ConfigRecord({**{f"{PART}{name}": one for name, one in noise.deviations.items()}, **lost})
    return reply


def noise_of(reply: Message) -> SumNoise | None:
    """Return the noise that an app's reply asks for; the record itself never leaves the site."""
    record = reply.content.config_records.get(NOISE)
    if record is None:
        return None
    lost = record.get(LOST)
    deviations = {name.removeprefix(PART): float(str(one)) for name, one in record.items() if name.startswith(PART)}
    return SumNoise(deviations, None if lost is None else int(str(lost)))


@dataclass(frozen=True)
class Answering:
    """A site while it answers one message of a run."""

    policy: SitePolicy
    key: Ed25519PrivateKey
    memory: Memory
    audit: AuditLog
    run: str

    def answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
        """What to send back; raises Refused."""
        purpose, stage = message.metadata.message_type, stage_of(message)
        check_package(self.policy)
        check_message(self.policy, purpose)
        if not stage:
            raise Refused(Reason.UNMASKED, "The message has no stage of a secure sum.")
        body = message.content.config_records[RECORD].get(BODY)
        request = RecordDict({name: record for name, record in message.content.items() if name != RECORD})
        if not isinstance(body, bytes) or (len(request) and stage != MASK):
            raise Refused(Reason.MALFORMED, f"The records of stage {stage}.")
        if stage == KEYS:
            return self._keys(Call.from_bytes(body), purpose)
        if stage == SHARES:
            return self._shares(Roster.from_bytes(body), purpose)
        if stage == MASK:
            state = self._begin(Delivery.from_bytes(body), purpose, request)
            message.content = request
            with self._drafts.collect(self.run, state.cohort.session.hex()):
                reply = call_next(message, context)
            return self._masked(state, request, reply)
        if stage == CONSENT:
            return self._consent(Survivors.from_bytes(body), purpose)
        return self._unmask(Consents.from_bytes(body), purpose, context.node_config.get("site"))

    def _keys(self, call: Call, purpose: str) -> RecordDict:
        if (call.run, call.purpose) != (self.run, purpose):
            raise Refused(Reason.STAGE, "A call for another run or purpose.")
        with self.memory.locked():
            self.memory.forget_old()
            state = member.advertise(self.policy.rules(), self.key, self.run)
            self.memory.keep(self.run, state)
            return self._leaving(KEYS, purpose, state.advert)

    def _shares(self, roster: Roster, purpose: str) -> RecordDict:
        if roster.purpose != purpose:
            raise Refused(Reason.STAGE, "A roster for another purpose.")
        with self.memory.locked():
            state, boxes = member.share(self.policy.rules(), self.key, self.memory.state(self.run), roster)
            self.memory.keep(self.run, state)
            return self._leaving(SHARES, purpose, boxes, cohort=list(roster.sites), request=roster.request)

    def _begin(self, delivery: Delivery, purpose: str, request: RecordDict) -> MemberState:
        """Take the step before the work, so that no second message finds it open."""
        with self.memory.locked():
            state = member.receive(self.policy.rules(), self._state(purpose), delivery)
            if request_digest(request) != state.cohort.request:
                raise Refused(Reason.REQUEST, "Its digest is not the one in the roster.")
            figures = purpose.partition(".")[0] != "train"
            self.memory.use(self._limit, queries=1 if figures else 0)
            self.memory.keep(self.run, state)
        return state

    def _masked(self, state: MemberState, request: RecordDict, reply: Message) -> RecordDict:
        if reply.has_error():
            raise Refused(Reason.FAILED, "The app answered with an error.")
        # With noise, the app has clipped before adding it; a norm that includes the noise is another one.
        clip = self.policy.clip if self.policy.noise_multiplier == 0 else None
        parts, values = flatten(request, reply.content, WEIGHT, clip)
        check_examples(self.policy, float(values[0]))
        fields = Fields(session=state.cohort.session.hex(), parts=parts)
        count = len(state.masking)
        values, changed = within(parts, values, count)
        if changed:
            self.audit.append("held back", self.run, purpose=state.cohort.purpose, parts=changed)
        words = encode(values, bits_of(fields), count)
        noise = noise_of(reply)
        if noise is not None:
            words += noise.words(parts, count)
        after, hidden = member.masked(self.policy.rules(), state, words)
        if noise is not None and noise.lost is not None:
            after = after.model_copy(update={"spare": max(0, noise.lost - self.policy.colluders)})
        with self.memory.locked():
            if self.memory.state(self.run) != state:
                raise Refused(Reason.STAGE, "Another sum of this run was begun meanwhile.")
            self.memory.keep(self.run, after)
            vector = Array(hidden)
            content = self._leaving(
                MASK, state.cohort.purpose, fields, vector, request=state.cohort.request, sites=sorted(state.masking)
            )
        content[VECTOR] = ArrayRecord({VECTOR: vector})
        return content

    def _consent(self, survivors: Survivors, purpose: str) -> RecordDict:
        with self.memory.locked():
            state, sent = member.consent(self.policy.rules(), self.key, self._state(purpose), survivors)
            self.memory.check_answered(*_answered(state))
            self.memory.keep(self.run, state)
            return self._leaving(CONSENT, purpose, sent, survivors=sorted(state.survivors))

    def _unmask(self, consents: Consents, purpose: str, site: object) -> RecordDict:
        """The shares, and keys for the next sum of the run. The state is gone before they leave.

        Only now, with enough signatures under the list of sites, is anything of the round kept in the site's folder.
        """
        with self.memory.locked():
            state = self._state(purpose)
            sent = member.reveal(self.policy.rules(), self.key, state, consents)
            self.memory.answer(*_answered(state))
            fresh = member.advertise(self.policy.rules(), self.key, self.run)
            self.memory.keep(self.run, fresh)
            kept = self._drafts.keep(self.run, consents.session, Path(site) / "model") if isinstance(site, str) else []
            content = sent.model_copy(update={"ahead": fresh.advert})
            return self._leaving(UNMASK, purpose, content, seeds=sorted(sent.seeds), keys=sorted(sent.keys), kept=kept)

    def _state(self, purpose: str) -> MemberState:
        state = self.memory.state(self.run)
        if state.stage is Stage.ADVERTISED or state.cohort.purpose != purpose:
            raise Refused(Reason.STAGE, "No sum for this purpose is under way.")
        return state

    @property
    def _drafts(self) -> Drafts:
        return Drafts(self.policy.state)

    @property
    def _limit(self) -> Usage:
        return Usage(queries=self.policy.queries_a_day, bytes=self.policy.bytes_a_day)

    def _leaving(
        self, stage: str, purpose: str, sent: SumMessage, vector: Array | None = None, **facts: str | list[str]
    ) -> RecordDict:
        """Count and log what is about to leave."""
        body = sent.to_bytes()
        hidden = b"" if vector is None else vector.data
        size = len(body) + len(hidden)
        self.memory.use(self._limit, bytes_=size)
        digest = hashlib.sha256(body + hidden).hexdigest()
        self.audit.append(stage, self.run, purpose=purpose, bytes=size, sha256=digest, **facts)
        return RecordDict({RECORD: ConfigRecord({STAGE: stage, BODY: body})})


def _answered(state: MemberState) -> tuple[str, str]:
    """Digests of the question of a sum, its purpose and what was sent, and of the sites that are in it."""
    contents = [state.cohort.purpose, state.cohort.request], sorted(state.survivors)
    question, sites = (hashlib.sha256(canonical(content)).hexdigest() for content in contents)
    return question, sites
