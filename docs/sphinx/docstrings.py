"""Docstrings are plain sentences with `code` in backticks. What reStructuredText would read as markup is escaped.

Signatures are shortened: shapes are in the docstrings, so an array is `ndarray`, whatever numpy calls it.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(``.+?``|`[^`\n]+`)")
BOLD = re.compile(r"(\*\*[^*\n]+\*\*)")
MARKUP = re.compile(r"([\\*|]|(?<=\w)_(?!\w))")


def escaped(line: str) -> str:
    """A line whose words mean themselves, and whose code stays code."""
    parts = CODE.split(line)
    for number, part in enumerate(parts):
        if CODE.fullmatch(part):
            parts[number] = f"``{part.strip('`')}``"
        else:
            words = BOLD.split(part)
            words[::2] = [MARKUP.sub(r"\\\1", word) for word in words[::2]]
            parts[number] = "".join(words)
    return "".join(parts)


ARRAY = re.compile(r"~numpy\.ndarray\[~typing\.Any, ~numpy\.dtype\[~?[\w.]+\]\]")


def _rewrite(*received: Any) -> None:
    """Called with the application, what is documented (kind, name, object), options, and the lines to change."""
    lines: list[str] = received[-1]
    lines[:] = [escaped(line) for line in lines]


def _shorten(*received: Any) -> tuple[str | None, str | None]:
    """Called as `_rewrite` is, with a signature and what is returned in place of lines."""
    signature, returned = (
        None if text is None else ARRAY.sub("~numpy.ndarray", text).replace("<factory>", "...")
        for text in received[-2:]
    )
    return signature, returned


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _rewrite)
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True}
