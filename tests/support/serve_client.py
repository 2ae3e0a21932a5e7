"""A served session without a network, for tests of the page."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distlfm.config import build
from distlfm.runs.settings import ServeConfig
from distlfm.serve.app import make_app
from distlfm.serve.session import Session
from tests.support.query_factories import fresh_genes, genes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another client than the one that is locked
    from starlette.testclient import TestClient

ADDRESS = "http://127.0.0.1:8765"


@contextmanager
def served(folder: Path, token: str | None = None, **settings: Any) -> Iterator[TestClient]:
    """A client of a session with a small trained operator; by default with the patients of a store."""
    content = {"checkpoint": str(genes()[0]), "data": {"path": str(fresh_genes())}, **settings}
    folder.mkdir(exist_ok=True)
    session = Session(build(ServeConfig, content), folder).open()
    try:
        with TestClient(make_app(session, token), base_url=ADDRESS, raise_server_exceptions=False) as client:
            yield client
    finally:
        session.close()


def drop(client: TestClient, name: str, content: bytes, settings: Sequence[str] = ()) -> Any:
    """Drop a file on the page."""
    return client.post("/api/sources", params={"name": name, "setting": list(settings)}, content=content)


def first_answer(client: TestClient, place: int = 0) -> dict[str, Any]:
    """The answer for a patient of the first source."""
    source = client.get("/api/about").json()["sources"][0]["key"]
    found = client.post("/api/answers", json={"source": source, "place": place})
    assert found.status_code == 200, found.text
    content: dict[str, Any] = found.json()
    return content
