"""The app bundle that travels through Flower: two text files that point at the installed package, and no code.

Link and sites each build it themselves, and accept only one whose files are the same as their own. So nobody can send
code to a site: not an outsider, not the link, not whoever holds an admin token; and a site with another version of the
package refuses instead of guessing.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import shutil
import tempfile
import zipfile
import zlib
from functools import cache
from importlib import resources
from pathlib import Path

from distlfm.errors import DistlfmError
from distlfm.optional import require
from distlfm.version import __version__

MOST_BYTES = 65_536
"""More than this, packed or unpacked, is not even opened; our own is a few kilobytes."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, RuntimeError, EOFError, ValueError)
"""What a file that is not packed may raise: each way of packing has an error of its own."""
_PLACEHOLDER = 'version = "0.0.0"'
_ASK = "Install the same version of distlfm on the link and at all sites."


class ForeignBundle(DistlfmError):
    """A bundle that is not the one which the installed package builds. The cause names no content of it."""


@cache
def build() -> bytes:
    """Our own bundle, a zip file in Flower's form."""
    flower = require("flwr.cli.build", "federated")
    folder = resources.files("distlfm.federated") / "app"
    settings = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert settings.count(_PLACEHOLDER) == 1
    settings = settings.replace(_PLACEHOLDER, f'version = "{__version__}"')
    files = {"pyproject.toml": settings.encode(), "README.md": (folder / "README.md").read_bytes()}
    content: bytes = flower.build_fab_from_files(files)[0]
    return content


def check(content: bytes) -> None:
    """Accept a bundle whose files have the names and bytes of ours, or raise ForeignBundle.

    Files are compared, not the packed bytes: those depend on the version of zlib.
    """
    found, ours = _files(content), _files(build())
    strange = sorted(found.keys() - ours.keys())
    if strange:
        raise ForeignBundle(f"The app bundle has {len(strange)} files that ours has not.", "Bundles carry no code.")
    if found.keys() != ours.keys():
        raise ForeignBundle("The app bundle lacks a file.", _ASK)
    if found != ours:
        raise ForeignBundle(f"The app bundle differs from that of the installed distlfm {__version__}.", _ASK)


def install(content: bytes, *_: object, **__: object) -> Path:
    """Unpack a bundle where Flower looks for it, whole or not at all. Gives the folder.

    Flower's own way copies file by file, and takes any folder that is there for a whole one: a disk that was full once
    would have left a site unable to answer for good.
    """
    flower, config = require("flwr.cli.install", "federated"), require("flwr.common.config", "federated")
    name, version = require("flwr.cli.config_utils", "federated").get_fab_metadata(content)
    place: Path = config.get_project_dir(name, version, hashlib.sha256(content).hexdigest())
    if _is_there(place, content):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as draft:
        made = flower.install_from_fab(content, Path(draft), skip_prompt=True)
        shutil.rmtree(place, ignore_errors=True)
        try:
            made.rename(place)
        except OSError:
            if not _is_there(place, content):  # another process was quicker
                raise
    return place


def _is_there(place: Path, content: bytes) -> bool:
    ours = {name: text for name, text in _files(content).items() if not name.startswith(".info/")}
    try:
        return all((place / name).read_bytes() == text for name, text in ours.items())
    except OSError:
        return False


def _files(content: bytes) -> dict[str, bytes]:
    if len(content) > MOST_BYTES:
        raise ForeignBundle("The app bundle is too large to be ours.", "Bundles carry no code.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            if len(set(names)) != len(names) or sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise ForeignBundle("The app bundle is not as ours is packed.", "Bundles carry no code.")
            return {entry.filename: archive.read(entry) for entry in entries}
    except UNREADABLE as error:
        raise ForeignBundle("The app bundle cannot be read.", _ASK) from error
