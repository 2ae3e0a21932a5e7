"""A bundle with code in it, and a request of an admin to run it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Any

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient

from distlfm.federated.link import bundle
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.setup.homes import LinkHome


def foreign_fab() -> bytes:
    """Our bundle, and a file of code in it."""
    with zipfile.ZipFile(io.BytesIO(bundle.build())) as archive:
        files = {name: archive.read(name) for name in ("pyproject.toml", "README.md")}
    content: bytes = build_fab_from_files({**files, "stolen.py": b"print('here')"})[0]
    assert b"stolen.py" in content
    return content


def start_foreign(link: LinkHome, programme: ProgrammeConfig) -> int:
    """Ask a link for a run of it, as an admin."""

    class Bearer:
        def intercept(self, context: Any, call_next: Any) -> Any:
            context.request.headers["authorization"] = f"Bearer {link.admin_token.read_text()}"
            return call_next(context)

    address, content = f"127.0.0.1:{link.config().port}", foreign_fab()
    settings = {"programme": programme.model_dump_json(), "run-name": "foreign"}
    request = StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content),
        override_config=user_config_to_proto(dict(settings)),
    )
    with ControlHttpClient.from_server_address(address, False, str(link.ca), [Bearer()]) as client:
        return int(client.StartRun(request).run_id)
