"""The page in a real browser: Debian's Chromium without a window, one session for all tests, a real server process."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from distlfm.data import write_npz
from distlfm.errors import DataError
from distlfm.fleets.sources import read_instances
from distlfm.runs.settings import DataConfig
from distlfm.store import Store
from tests.support.fleet_runs import all_gone, descendants
from tests.support.query_factories import fresh_genes
from tests.support.serve_page import CONTRAST, PATIENCE, Page, Served, ids, start, table_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = start(tmp_path_factory.mktemp("server"), "--data", str(fresh_genes()), "max_megabytes=1")
    yield found
    found.process.terminate()
    assert found.process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    # Root has no sandbox, and containers have little shared memory. No name is looked up: the page works offline.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,1400"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    where = {"behavior": "allow", "downloadPath": str(downloads)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    yield driver
    driver.quit()


def opened(browser: webdriver.Chrome, address: str) -> Page:
    """The page loaded anew: it asks for the token, and holds nothing of what was done before."""
    found = Page(browser)
    browser.get(address)
    browser.execute_script("sessionStorage.clear()")
    browser.refresh()
    found.until(lambda: found["token-dialog"].is_displayed(), "no token was asked for")
    return found


@pytest.fixture
def page(browser: webdriver.Chrome, server: Served) -> Page:
    """The page, opened with the token."""
    found = opened(browser, server.address)
    found["token"].send_keys(server.token, Keys.ENTER)
    found.says("found", "24 of 24 patients.")
    return found


def test_a_wrong_token_shows_nothing(browser: webdriver.Chrome, server: Served) -> None:
    page = opened(browser, server.address)
    page["token"].send_keys("not-the-token-of-this-page", Keys.ENTER)
    page.says("token-error", "The token is missing or wrong.")
    assert not page["choose"].is_displayed()
    page["token"].send_keys(server.token, Keys.ENTER)
    page.says("found", "24 of 24 patients.")


def test_the_link_opens_the_page_at_once_and_leaves_no_token_in_the_address(
    browser: webdriver.Chrome, server: Served
) -> None:
    page = opened(browser, server.address)
    browser.get(f"{server.address}#token={server.token}")
    page.says("found", "24 of 24 patients.")
    assert browser.current_url == server.address
    browser.refresh()
    page.says("found", "24 of 24 patients.")
    assert browser.get_cookies() == []


def test_a_unit_that_a_name_ends_in_is_not_shown_twice(page: Page) -> None:
    """As on the axes of pictures."""
    names = ["Conc. [mg/L]", "Conc. (mg/L) ", "Conc. [g/L]", "Conc."]
    wanted = "import('./show.js').then((show) => arguments[1](arguments[0].map((name) => show.named(name, 'mg/L'))));"
    shown = page.browser.execute_async_script(wanted, names)
    assert shown == [*names[:2], "Conc. [g/L] (mg/L)", "Conc. (mg/L)"]


def test_a_patient_is_chosen_and_answered_by_keyboard_alone(page: Page) -> None:
    page["search"].send_keys(ids()[5])
    page.says("found", "1 of 24 patients.")
    page["search"].send_keys(Keys.TAB)
    assert page.focused() == "patients"
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.says("answer-title", f"Answer for {ids()[5]}")
    page.until(lambda: page.drawn("answer-figure"), "no picture")
    page.until(lambda: page.focused() == "answer-title", "a reader must be led to the answer")
    assert "highest at time" in (page["answer-figure"].get_attribute("alt") or "")
    assert "where 1 is the limit" in page["answer-status"].text
    names = [row[0].split()[0] for row in table_of(page, "answer-parameters")]  # units follow in brackets
    assert {"decay[output_0]", "decay[output_1]"} <= set(names)
    assert len(table_of(page, "answer-numbers")) == 21
    assert len(table_of(page, "answer-data")) == 21


def test_focus_goes_through_the_page_in_the_order_in_which_it_is_read(page: Page) -> None:
    choose(page, 2)
    page.browser.execute_script("document.getElementById('file').focus()")
    way = []
    for _ in range(9):
        way.append(page.focused())
        ActionChains(page.browser).send_keys(Keys.TAB).perform()
    wanted = ["file", "source", "search", "patients", "show"]
    assert [one for one in way if one in wanted] == wanted
    outlined = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.browser.execute_script(outlined) != "none", "where the focus is can be seen"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(scheme: str, page: Page) -> None:
    choose(page, 2)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    found = page.browser.execute_script(CONTRAST)
    assert len(found) > 30
    assert [one for one in found if one[0] < 4.5] == []


def test_every_control_has_a_name_for_screen_readers(page: Page) -> None:
    choose(page, 2)
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "textbox", "searchbox", "listbox", "combobox", "progressbar", "image", "table", "region"}
    shown = [one for one in tree if not one.get("ignored") and one.get("role", {}).get("value") in roles]
    assert len(shown) > 8
    assert [one["role"] for one in shown if not one.get("name", {}).get("value")] == []


def test_a_dropped_file_in_wrong_units_is_answered_with_a_warning(page: Page) -> None:
    rows = [f"{t},output_{k},{1000 * (1 + k + t / 9)}" for t in range(12) for k in (0, 1)]
    page.drop("ward.csv", "\n".join(["time,output,value", *rows]).encode())
    page.says("file-status", "ward.csv: 1 patient.")
    page.says("answer-title", "Answer for ward")
    assert page["unlike"].is_displayed()
    assert page["unlike"].get_attribute("role") == "alert"
    assert "Do not rely on this answer; fit the instance instead." in page["unlike"].text


def test_a_malformed_file_is_refused_with_the_sentence_of_the_command_line(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text("time;value\n0;1\n1;2\n")
    with pytest.raises(DataError) as caught:
        read_instances(DataConfig(path=path))
    page["file"].send_keys(str(path))
    page.says("file-error", str(caught.value).replace(f"{tmp_path}/", ""))


def test_columns_in_doubt_are_asked_for_and_taken(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("time,output_0,output_1\n" + "".join(f"{t},{1 + t / 9},{2 - t / 9}\n" for t in range(12)))
    page["file"].send_keys(str(path))
    page.says("file-error", "could each be the observed values")
    wanted = "data.columns.time=time\ndata.columns.values=[output_0, output_1]"
    assert page["settings"].get_attribute("value") == wanted
    page["file"].send_keys(str(path))
    page.says("answer-title", "Answer for wide")
    assert not page["file-error"].is_displayed()
    # What was filled in for that file says nothing about the next one.
    clear = tmp_path / "clear.csv"
    clear.write_text(
        "hours,gene,level\n" + "".join(f"{t},output_{i},{1 + i + t / 9}\n" for t in range(12) for i in (0, 1))
    )
    page["file"].send_keys(str(clear))
    page.says("answer-title", "Answer for clear")
    assert page["settings"].get_attribute("value") == ""


def test_a_file_that_is_too_large_is_refused(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_bytes(b"time,value\n" + b"0,1\n" * 2**19)
    page["file"].send_keys(str(path))
    page.says("file-error", "large.csv: The file is larger than 1 MB.")


def test_an_archive_of_several_patients_is_listed_and_forgotten(page: Page, tmp_path: Path) -> None:
    write_npz(tmp_path / "three.npz", Store.open(fresh_genes()).instances(0, 3))
    page["file"].send_keys(str(tmp_path / "three.npz"))
    page.says("file-status", "three.npz: 3 patients.")
    page.says("answer-title", f"Answer for {ids()[0]}")
    page["forget"].click()
    page.says("file-status", "three.npz is forgotten.")
    assert not page["answer"].is_displayed()
    assert all("three.npz" not in one.text for one in Select(page["source"]).options)


def choose(page: Page, place: int) -> None:
    """A patient of the store."""
    Select(page["source"]).select_by_index(0)
    page.until(lambda: len(Select(page["patients"]).options) == 24, "the store is not listed")
    Select(page["patients"]).select_by_index(place)
    page["show"].click()
    page.says("answer-title", f"Answer for {ids()[place]}")


DELAYED = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const found = await real(path, options);
  const late = options?.body === arguments[0] || String(path).endsWith(arguments[0]);
  if (late) await new Promise((resolve) => { window.release = resolve; });
  return found;
};
window.restore = () => { window.fetch = real; delete window.release; };
"""
"""Holds back the answer to a request that ends in a text, or consists of it."""


def is_held(page: Page) -> bool:
    return bool(page.browser.execute_script("return !!window.release"))


def let_go(page: Page) -> None:
    """Give the page the answer that was held back, and time to make something of it."""
    page.browser.execute_script("window.release(); window.restore()")
    time.sleep(0.5)


def test_a_list_that_comes_late_does_not_take_the_place_of_a_newer_one(page: Page) -> None:
    choose(page, 3)
    letter = ids()[5][0]
    page.browser.execute_script(DELAYED, f"search={letter}")
    page["search"].send_keys(letter)
    page.until(lambda: is_held(page), "nothing was held back")
    page["search"].send_keys(ids()[5][1:])
    page.says("found", "1 of 24 patients.")
    let_go(page)
    assert "1 of 24 patients." in page["found"].text
    page["search"].send_keys(*[Keys.BACKSPACE] * len(ids()[5]))
    page.says("found", "24 of 24 patients.")


def test_an_answer_that_comes_late_does_not_take_the_place_of_another_patients(page: Page) -> None:
    choose(page, 2)
    source = page["source"].get_attribute("value")
    page.browser.execute_script(DELAYED, json.dumps({"source": source, "place": 3}, separators=(",", ":")))
    Select(page["patients"]).select_by_index(3)
    page["show"].click()
    page.until(lambda: is_held(page), "nothing was held back")
    choose(page, 4)
    let_go(page)
    page.until(lambda: page.drawn("answer-figure"), "no picture")
    assert page["answer-title"].text == f"Answer for {ids()[4]}"
    assert ids()[4] in (page["answer-figure"].get_attribute("alt") or "")


def test_a_picture_that_comes_late_does_not_stand_under_another_patients_name(page: Page) -> None:
    page.browser.execute_script(DELAYED, "/figure.svg")
    choose(page, 5)
    page.until(lambda: is_held(page), "nothing was held back")
    assert not page.drawn("answer-figure"), "that of the patient before is gone"
    first = "window.first = window.release; delete window.release;"
    page.browser.execute_script(first)
    choose(page, 6)
    page.until(lambda: is_held(page), "nothing was held back")
    assert page.focused() == "answer-title"
    page.browser.execute_script("document.getElementById('search').focus(); window.release();")
    page.until(lambda: page.drawn("answer-figure"), "no picture")
    assert page.focused() == "search", "the picture does not take the focus away"
    shown = page["answer-figure"].get_attribute("src")
    page.browser.execute_script("window.first(); window.restore()")
    time.sleep(0.5)
    assert page["answer-figure"].get_attribute("src") == shown
    assert ids()[6] in (page["answer-figure"].get_attribute("alt") or "")


def test_downloads_arrive_as_png_and_csv(page: Page, downloads: Path) -> None:
    choose(page, 2)
    for button in page.browser.find_elements(By.CSS_SELECTOR, "[data-answer]"):
        button.click()
    names = [f"{ids()[2]}_operator_{name}" for name in ("figure.png", "force.csv", "parameters.csv")]
    files = [downloads / name for name in names]
    page.until(lambda: all(one.exists() for one in files), f"missing: {names}")
    assert files[0].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(files[1].open()))
    assert len(rows) == 21
    assert all(float(row["lower95"]) < float(row["mean"]) < float(row["upper95"]) for row in rows)


def test_a_fit_that_is_cancelled_leaves_no_process(page: Page, server: Served) -> None:
    choose(page, 1)
    page["start"].click()
    page.says("fit-status", f"Fit of {ids()[1]}, step ")
    assert page["progress"].is_displayed()
    assert page.focused() == "cancel"
    running = descendants(server.process.pid)
    assert running
    page["cancel"].click()
    page.says("fit-status", f"The fit of {ids()[1]} was cancelled.")
    assert all_gone(running, PATIENCE)
    assert page.focused() == "start", "the focus is not lost with the button"


def test_a_full_fit_is_compared_with_the_answer(page: Page, server: Served, downloads: Path) -> None:
    choose(page, 1)
    assert "the priors of the data that it learned from" in page["fit-how"].text
    assert "lengthscale uniform (0.7 to 3)" in page["fit-priors"].text
    page["start"].click()
    page.says("fit-status", f"The fit of {ids()[1]} is done")
    assert page["fit-status"].get_attribute("aria-live") == "polite"
    page.until(lambda: page.drawn("comparison-figure") and page.drawn("fit-figure"), "no pictures")
    assert "inside the operator's 95 % interval" in page["agreement"].text
    assert "Full fit." in (page["comparison-figure"].get_attribute("alt") or "")
    rows = {row[0].split()[0]: row[1:] for row in table_of(page, "fit-parameters")}
    assert "–" not in rows["decay[output_0]"], "both give it"
    page.browser.find_element(By.CSS_SELECTOR, "[data-fit='force.csv']").click()
    file = downloads / f"{ids()[1]}_fit_force.csv"
    page.until(file.exists, "no file")
    numbers = np.array(
        [[float(row[name]) for name in ("lower95", "mean", "upper95")] for row in csv.DictReader(file.open())]
    )
    assert numbers.shape == (21, 3)
    assert (np.diff(numbers, axis=1) > 0).all()
    assert not descendants(server.process.pid)


def test_nothing_came_from_elsewhere_and_nothing_was_forbidden(page: Page, server: Served) -> None:
    choose(page, 2)
    page.until(lambda: page.drawn("answer-figure"), "no picture")
    script = "return performance.getEntries().filter((one) => one.responseStatus !== undefined).map((one) => one.name)"
    loaded = page.browser.execute_script(script)
    assert len(loaded) >= 10
    assert [one for one in loaded if not one.startswith((server.address, f"blob:{server.address}"))] == []
    assert page.browser.get_cookies() == []
    # Refusals that the tests above ask for are told by the browser as resources that failed to load.
    told = [one["message"] for one in page.browser.get_log("browser")]
    assert [one for one in told if "Failed to load resource" not in one] == []


def test_the_page_says_that_it_is_not_for_clinical_decisions(page: Page) -> None:
    note = page.browser.find_element(By.CSS_SELECTOR, "[role=note]")
    assert note.is_displayed()
    assert note.text.startswith("Not for clinical decisions. A latent force was never measured")


def test_a_server_that_is_ended_leaves_neither_files_nor_fits(browser: webdriver.Chrome, tmp_path: Path) -> None:
    write_npz(tmp_path / "one.npz", Store.open(fresh_genes()).instances(0, 1))
    other = start(tmp_path, "--data", str(tmp_path / "one.npz"))
    try:
        page = opened(browser, other.address)
        page["token"].send_keys(other.token, Keys.ENTER)
        page.says("found", "1 of 1 patient.")
        page["show"].click()
        page.says("answer-title", f"Answer for {ids()[0]}")
        page["start"].click()
        page.says("fit-status", "step ")
        running = descendants(other.process.pid)
        assert running
        assert len(other.session) == 1
        other.process.send_signal(signal.SIGINT)
        assert other.process.wait(PATIENCE) == 0
        assert all_gone(running, PATIENCE)
        assert other.session == []
        assert other.process.stdout is not None
        assert "nothing of its session is kept" in other.process.stdout.read()
    finally:
        other.process.kill()
        other.process.wait()


def test_a_fit_ends_with_a_server_that_is_killed() -> None:
    """Its standard input is a pipe of the server's, which closes with it."""
    process = subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert all_gone({child}, PATIENCE)


CHILD = """
import time
from distlfm.serve.fit_child import end_with_parent
end_with_parent()
print("up", flush=True)
time.sleep(600)
"""

HELD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
