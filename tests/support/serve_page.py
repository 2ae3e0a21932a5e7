"""A served page and a browser that looks at it, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from distlfm.serve.server import PREFIX
from distlfm.store import Store
from tests.support.query_factories import fresh_genes, genes

PATIENCE = 120
"""Seconds to wait for something on a machine that has other things to do; nothing is measured by it."""

DROP = """
const transfer = new DataTransfer();
transfer.items.add(new File([arguments[0]], arguments[1]));
document.getElementById("drop").dispatchEvent(
  new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
"""

CONTRAST = """
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (one) => {
  for (let here = one; here; here = here.parentElement) {
    const colour = parts(getComputedStyle(here).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const one of document.querySelectorAll("body *")) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !one.checkVisibility() || one.disabled || one.matches("option, script, noscript")) continue;
  const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.tagName, one.textContent.slice(0, 30)]);
}
return found;
"""


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    address: str
    token: str
    temporary: Path

    @property
    def session(self) -> list[Path]:
        """Folders of sessions."""
        return list(self.temporary.glob(f"{PREFIX}*"))


def start(folder: Path, *arguments: str) -> Served:
    """A server in a process of its own, with a temporary folder of its own."""
    temporary = folder / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "distlfm", "serve", str(genes()[0]), "--port", "0", *arguments]
    command += ["--token-file", str(folder / "token")]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
    )
    assert process.stdout is not None
    told = process.stdout.readline()
    assert told.startswith("page: http://127.0.0.1:"), told
    return Served(process, told.split()[1], (folder / "token").read_text().strip(), temporary)


class Page:
    """What a person does with the page."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def __getitem__(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def until(self, condition: Any, what: str) -> Any:
        return WebDriverWait(self.browser, PATIENCE, 0.1).until(lambda _: condition(), what)

    def says(self, name: str, words: str) -> str:
        """Wait until some part of the page says something."""
        self.until(lambda: words in self[name].text, f"{name} never said {words!r} but {self[name].text!r}")
        return self[name].text

    def drop(self, name: str, content: bytes) -> None:
        self.browser.execute_script(DROP, content.decode(), name)

    def focused(self) -> str:
        return str(self.browser.switch_to.active_element.get_attribute("id"))

    def drawn(self, name: str) -> bool:
        """Whether a picture is loaded."""
        script = "return arguments[0].complete && arguments[0].naturalWidth > 100"
        return bool(self.browser.execute_script(script, self[name]))


def ids() -> list[str]:
    return [one.id for one in Store.open(fresh_genes()).instances(0, 24)]


def table_of(page: Page, name: str) -> list[list[str]]:
    rows = page[name].find_elements(By.CSS_SELECTOR, "tbody tr")
    return [[cell.get_attribute("textContent") or "" for cell in row.find_elements(By.XPATH, "./*")] for row in rows]
