"""A Flower grid in one process: the same apps and the same bytes as over the network, and a record of all of them.

For simulations on one machine and for tests. Messages pass through Flower's own serialisation; what an app raises goes
to the server word for word, as it does under Flower.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from distlfm.federated.secure.mod import stage_of

TO_SITE, TO_SERVER = "to site", "to server"
Hook = Callable[[Message], Message | None]


@dataclass(frozen=True)
class Frame:
    """One message on the wire. stage: of the secure sum, if it is of one. delivered: a lost one was still sent."""

    direction: str
    node: int
    message_type: str
    stage: str
    payload: bytes
    delivered: bool


class LocalGrid(Grid):
    """Nodes that all run one app, one after the other.

    nodes: node config by node id; `name` in it is what the grid calls the node. on_request, on_reply: see or change a
    message on its way; None loses it.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, UserConfig],
        *,
        run_id: int = 1,
        on_request: Hook | None = None,
        on_reply: Hook | None = None,
    ) -> None:
        self._app = app
        self._run = Run.create_empty(run_id)
        self._contexts = {
            node: context_to_proto(Context(run_id, node, dict(config), RecordDict(), {})).SerializeToString()
            for node, config in nodes.items()
        }
        self._names = {node: str(config.get("name", "")) for node, config in nodes.items()}
        self.on_request, self.on_reply = on_request, on_reply
        self._replies: dict[str, Message] = {}
        self.wire: list[Frame] = []
        self._be_server()

    @property
    def bytes_sent(self) -> int:
        """Bytes from the server to the sites."""
        return sum(len(frame.payload) for frame in self.wire if frame.direction == TO_SITE)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self._names.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            identity = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = identity
            identities.append(identity)
            reply = self._carry(message)
            if reply is not None:
                self._replies[identity] = reply
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(identity) for identity in message_ids if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout  # whoever has not answered by now never will
        return self.pull_messages(self.push_messages(messages))

    def _carry(self, message: Message) -> Message | None:
        stage = stage_of(message)
        request = self._pass(TO_SITE, message, self.on_request, stage)
        if request is None:
            return None
        reply = self._answer(request)
        reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        return self._pass(TO_SERVER, reply, self.on_reply, stage)

    def _pass(self, direction: str, message: Message, hook: Hook | None, stage: str) -> Message | None:
        """Over the wire: what is recorded is what was sent, after any tampering at the server's side."""
        passed = hook(message) if hook is not None else message
        sent = passed if direction == TO_SITE and passed is not None else message
        payload = message_to_proto(sent).SerializeToString()
        node = message.metadata.dst_node_id if direction == TO_SITE else message.metadata.src_node_id
        self.wire.append(
            Frame(direction, node, message.metadata.message_type, stage, payload, delivered=passed is not None)
        )
        if passed is None:
            return None
        carried = payload if passed is sent else message_to_proto(passed).SerializeToString()
        return message_from_proto(ProtoMessage.FromString(carried))

    def _answer(self, message: Message) -> Message:
        """What a node's process does: a fresh context from what was kept, the app, the context kept again."""
        node = message.metadata.dst_node_id
        context = context_from_proto(ProtoContext.FromString(self._contexts[node]))
        TaskIdentity.node_id = node
        try:
            reply = self._app(message, context)
        except Exception as error:  # as Flower does it
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
        finally:
            self._be_server()
        self._contexts[node] = context_to_proto(context).SerializeToString()
        return reply

    def _be_server(self) -> None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = self._run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
