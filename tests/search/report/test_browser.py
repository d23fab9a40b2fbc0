"""The page in a real browser: it draws, answers the mouse and the keys, and the console stays empty."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from search import cli  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("CI"), reason="needs chromium and chromedriver"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    job = ["--tp", "1,2,4", "--pp", "1,2"]
    frontier, swept = str(folder / "frontier.parquet"), str(folder / "sweep.parquet")
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", *job, "-o", frontier]) == 0
    sizes = ["--gpus", "8,12,16,32", "--tokens", "1T", "--set", "cluster.levels.1.bandwidth=25GB/s,50GB/s"]
    assert cli.main(["sweep", "llama-3.1-8b", "dgx-h100", *sizes, *job, "-o", swept]) == 0
    for name in ("frontier", "sweep"):
        assert cli.main(["report", str(folder / f"{name}.parquet"), "-o", str(folder / f"{name}.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('user')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser, pages: Path, name: str):  # type: ignore[no-untyped-def]
    browser.get((pages / f"{name}.html").as_uri())
    browser.implicitly_wait(5)
    assert browser.find_elements(By.CSS_SELECTOR, "svg .point")
    return browser


@pytest.mark.parametrize("name", ["frontier", "sweep"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_draws_without_a_word_on_the_console(browser, pages: Path, name: str, theme: str, width: int) -> None:  # type: ignore[no-untyped-def]
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.set_window_size(width, 900)
    page = opened(browser, pages, name)
    assert page.get_log("browser") == []
    back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 21, 27)"}[theme]
    over = page.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0, "wider than the screen"
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_hover_tells_a_layout_and_a_click_chooses_it(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "frontier")
    points = page.find_elements(By.CSS_SELECTOR, "svg .point")
    rows = page.execute_script("return D.count")
    assert len(points) == rows
    webdriver.ActionChains(page).scroll_to_element(points[0]).move_to_element(points[0]).perform()
    tip = page.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.is_displayed()
    assert "MFU" in tip.text
    webdriver.ActionChains(page).click(points[0]).perform()
    chosen = page.find_element(By.CSS_SELECTOR, "[aria-live] h2").text
    assert tip.text.startswith(chosen)
    assert "activations" in page.find_element(By.CSS_SELECTOR, "[aria-live]").text


def test_the_keys_reach_everything(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "frontier")
    page.find_element(By.CSS_SELECTOR, "svg[tabindex]").send_keys(Keys.END)
    last = page.find_element(By.CSS_SELECTOR, ".tip b").text
    page.find_element(By.CSS_SELECTOR, "svg[tabindex]").send_keys(Keys.ENTER)
    assert page.find_element(By.CSS_SELECTOR, "[aria-live] h2").text == last
    page.find_element(By.CSS_SELECTOR, "svg[tabindex]").send_keys(Keys.ARROW_LEFT)
    assert page.find_element(By.CSS_SELECTOR, ".tip").is_displayed()
    row = page.find_elements(By.CSS_SELECTOR, "tr[data-row]")[1]
    row.send_keys(Keys.ENTER)
    assert "rank 2 of" in page.find_element(By.CSS_SELECTOR, "[aria-live]").text


def test_the_table_sorts_and_filters(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "sweep")
    body = "tbody tr[data-row]"
    every = page.find_elements(By.CSS_SELECTOR, body)
    assert len(every) == 6
    assert "whole nodes" in page.find_element(By.TAG_NAME, "main").text, "the reason why 12 GPUs have no layout"
    head = next(it for it in page.find_elements(By.CSS_SELECTOR, "th button") if it.text == "days")
    for order in (1, -1):
        head.click()
        cells = [row.find_elements(By.TAG_NAME, "td") for row in page.find_elements(By.CSS_SELECTOR, body)]
        days = [
            float(next(cell.text for cell in row if cell.text.endswith(" d")).split()[0].replace(",", ""))
            for row in cells
        ]
        assert days == sorted(days, reverse=order < 0)
    page.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("25GB 32")
    assert len(page.find_elements(By.CSS_SELECTOR, body)) == 1


def test_paper_is_light_and_has_no_buttons(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "frontier")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.find_element(By.ID, "theme").is_displayed()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
