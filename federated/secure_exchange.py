"""Messages of one secure sum between the server and the nodes: who was asked, who answered, and who dropped out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.grid import Grid

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secagg.messages import Advert, Call, Delivery, Fields, Said
from distlfm.federated.secagg.ring import Words
from distlfm.federated.secure_mod import BODY, CONSENT, KEYS, MASK, RECORD, STAGE, UNMASK, VECTOR
from distlfm.federated.secure_records import fits

LOST = "no answer in time"
TWICE = "another node has the same name"
STRANGER = "keys in the name of a site that it is not"
OTHER_FORM = "an answer of another form than most sites'"
ELSEWHERE = "the sum failed"

Kind = TypeVar("Kind", bound=Said)
Answer = TypeVar("Answer")


@dataclass
class SumReport:
    """How a secure sum went. dropped: reason by node. seconds: by stage. failure: why there was no sum, or empty.

    sent, received: bytes of arrays and protocol messages, seen from the server. sha256: of the mean, if there is one.
    """

    purpose: str
    cohort: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    dropped: dict[int, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    sent: int = 0
    received: int = 0
    sha256: str = ""


class Patience:
    """How long to wait in each stage of a sum, so that the sum ends in time. seconds: for all of it; None for ever.

    Stages without work wait `stage` seconds at most. Of what is given for the sum a quarter may go by in each of the
    first two, and a quarter is left for the two that end it: one lost answer does not use up the time of the others.
    """

    def __init__(self, seconds: float | None, stage: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._stage, self._clock = seconds, stage, clock
        self._begun = clock()

    def of(self, stage: str) -> float | None:
        """Seconds that a stage may take which begins now."""
        if self._seconds is None:
            return None if stage == MASK else self._stage
        left, quarter = self._seconds - (self._clock() - self._begun), self._seconds / 4
        if stage == MASK:
            return max(0.0, left - min(2 * self._stage, quarter))
        share = {CONSENT: left / 2, UNMASK: left}.get(stage, quarter)
        return max(0.0, min(self._stage, share, left))


class Exchange:
    """The nodes of one sum. asked: the strategy's own message by node. nodes: node by name of site, once known.

    names: site by node, of nodes whose key the link has enrolled; such a node speaks for no other site.
    """

    def __init__(
        self,
        inner: Grid,
        asked: Mapping[int, Message],
        report: SumReport,
        patience: Patience,
        names: Mapping[int, str],
    ) -> None:
        self._inner, self._patience, self._names = inner, patience, names
        self.asked, self.report = asked, report
        self.nodes: dict[str, int] = {}

    def call(self, said: Call) -> dict[int, Advert]:
        """Ask every node for keys."""
        replies = self._send(KEYS, {node: self._content(KEYS, said) for node in self.asked})
        return self._read(replies, Advert)

    def introduce(self, adverts: Mapping[int, Advert], known: Callable[[Advert], bool]) -> dict[str, Advert]:
        """Learn which node is which site. known: whether an advert is the site's own.

        Nobody gets into a site's place with a forged advert, nor with one that the site has sent before.
        """
        for node, advert in adverts.items():
            if self._names.get(node, advert.site) != advert.site or not known(advert):
                self.report.dropped[node] = STRANGER
            elif advert.site in self.nodes:
                self.report.dropped[node] = TWICE
            else:
                self.nodes[advert.site] = node
        return {site: adverts[node] for site, node in self.nodes.items()}

    def leave_out(self, sites: Iterable[str], reason: str) -> None:
        """Note why sites are not in the sum though they answered."""
        for site in sites:
            self.report.dropped[self.nodes[site]] = reason

    def ask(self, stage: str, said: Mapping[str, Said], kind: type[Kind]) -> dict[str, Kind]:
        """Send each site what is said to it; the answers that came and can be read, by site."""
        contents = {self.nodes[site]: self._content(stage, one) for site, one in said.items()}
        return self._by_site(self._read(self._send(stage, contents), kind))

    def ask_vectors(self, deliveries: Mapping[str, Delivery], request: RecordDict) -> dict[str, tuple[Fields, Words]]:
        """Send the request itself, for which the sites work; their masked vectors [N] and what form these have."""
        contents = {}
        for site, said in deliveries.items():
            contents[self.nodes[site]] = RecordDict({**request, **self._content(MASK, said)})
        replies = self._send(MASK, contents)
        fields = self._read(replies, Fields)
        vectors = {}
        for node, form in fields.items():
            vector = _vector(replies[node])
            if vector is None or not fits(request, form, len(vector)):
                self.report.dropped[node] = Reason.MALFORMED.value
            else:
                vectors[node] = (form, vector)
        return self._by_site(vectors)

    def replies(self, mean: RecordDict | None) -> list[Message]:
        """What the strategy gets: the mean as the reply of one surviving node, and an error for all who dropped out."""
        survivors = [self.nodes[site] for site in self.report.survivors] if mean is not None else []
        answers = [Message(mean, reply_to=self.asked[survivors[0]])] if mean is not None else []
        for node, message in self.asked.items():
            if node not in survivors:
                reason = self.report.dropped.get(node, self.report.failure or ELSEWHERE)
                answers.append(Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason=reason), reply_to=message))
        return answers

    def _content(self, stage: str, said: Said) -> RecordDict:
        return RecordDict({RECORD: ConfigRecord({STAGE: stage, BODY: said.to_bytes()})})

    def _send(self, stage: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Replies with content, by node; the others have dropped out."""
        messages = [
            Message(
                content,
                node,
                self.report.purpose,
                ttl=self.asked[node].metadata.ttl,
                group_id=self.asked[node].metadata.group_id,
            )
            for node, content in contents.items()
        ]
        with self._timed(stage):
            replies = self._inner.send_and_receive(messages, timeout=self._patience.of(stage))
            arrived = {reply.metadata.src_node_id: reply for reply in replies}
        self.report.sent += sum(_size(content) for content in contents.values())
        self.report.received += sum(_size(reply.content) for reply in arrived.values() if reply.has_content())
        for node in contents:
            if node not in arrived:
                self.report.dropped[node] = LOST
            elif arrived[node].has_error():
                self.report.dropped[node] = str(arrived[node].error.reason)
        return {node: reply for node, reply in arrived.items() if node in contents and reply.has_content()}

    def _read(self, replies: Mapping[int, Message], kind: type[Kind]) -> dict[int, Kind]:
        found = {}
        for node, reply in replies.items():
            record = reply.content.config_records.get(RECORD)
            body = record.get(BODY) if record is not None else None
            try:
                found[node] = kind.from_bytes(body if isinstance(body, bytes) else b"")
            except Refused as refused:
                self.report.dropped[node] = refused.reason.value
        return found

    def _by_site(self, answers: Mapping[int, Answer]) -> dict[str, Answer]:
        return {site: answers[node] for site, node in self.nodes.items() if node in answers}

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.report.seconds[stage] = time.perf_counter() - start


def _vector(reply: Message) -> Words | None:
    record = reply.content.array_records.get(VECTOR)
    if record is None or VECTOR not in record:
        return None
    try:
        vector = record[VECTOR].numpy()
    except Exception:  # a stranger's bytes: numpy has many errors for what is no array, want of memory among them
        return None
    return vector if vector.dtype == np.uint64 and vector.ndim == 1 else None


def _size(content: RecordDict) -> int:
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    configs = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(value) for value in configs if isinstance(value, (bytes, str)))
