"""The page in a real browser: it draws, answers the mouse and the keys, and the console stays empty."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from search import cli  # noqa: E402
from search.frontier import read_frontier  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


PAGES = ("frontier", "sweep", "many", "one")
MACHINES = (
    "dgx-a100,dgx-a100-40g,dgx-b200,dgx-b300,dgx-h100,dgx-h200,gb200-nvl72,gh200-quad,hgx-a800,hgx-h20,hgx-h800,"
    "mi300x-8,pcie-h100"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    job = ["--tp", "1,2,4", "--pp", "1,2"]
    frontier, swept = str(folder / "frontier.parquet"), str(folder / "sweep.parquet")
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", *job, "-o", frontier]) == 0
    sizes = ["--gpus", "8,12,16,32", "--tokens", "1T", "--set", "cluster.levels.1.bandwidth=25GB/s,50GB/s"]
    assert cli.main(["sweep", "llama-3.1-8b", "dgx-h100", *sizes, *job, "-o", swept]) == 0
    many = ("sweep", "llama-3.1-8b", MACHINES, "--global-batch", "256:512", "--tokens", "1T", *job)
    assert cli.main([*many, "--gpus", "64,128", "-o", str(folder / "many.parquet")]) == 0
    assert cli.main([*many, "--gpus", "64", "-o", str(folder / "one.parquet")]) == 0
    for name in PAGES:
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


@pytest.mark.parametrize("name", PAGES)
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


def texts(page, css: str) -> list[str]:  # type: ignore[no-untyped-def]
    return [it.text for it in page.find_elements(By.CSS_SELECTOR, css)]


def looks(page, css: str, *names: str) -> list[tuple[str, ...]]:  # type: ignore[no-untyped-def]
    """Attributes of the paths."""
    return [tuple(it.get_attribute(name) or "" for name in names) for it in page.find_elements(By.CSS_SELECTOR, css)]


def test_thirteen_machines_are_told_apart(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    browser.set_window_size(1200, 900)
    page = opened(browser, pages, "many")
    first = page.find_element(By.CSS_SELECTOR, ".chart")
    lines = looks(first, ".joined", "stroke", "stroke-dasharray")
    assert len(set(lines)) == len(lines) == 13
    assert len(set(looks(first, ".point", "fill", "d"))) == 13
    assert sorted(texts(first, "text.name")) == sorted(MACHINES.split(","))
    assert not [it for it in first.find_elements(By.CSS_SELECTOR, ".band") if it.is_displayed()]
    first.find_element(By.CSS_SELECTOR, "svg[tabindex]").send_keys(Keys.HOME)
    shown = [it for it in first.find_elements(By.CSS_SELECTOR, ".series") if "on" in it.get_attribute("class")]
    bands = [it for it in first.find_elements(By.CSS_SELECTOR, ".band") if it.is_displayed()]
    assert len(shown) == len(bands) == 1
    assert bands[0].get_attribute("fill") == shown[0].find_element(By.CSS_SELECTOR, ".joined").get_attribute("stroke")


def test_what_lies_beyond_the_first_bars_is_said_and_shown(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "many")
    more = page.find_element(By.CSS_SELECTOR, "details.more")
    assert more.text == "The other 2"
    assert "first 24 of 26" in page.find_element(By.TAG_NAME, "main").text
    more.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert len(more.find_elements(By.CSS_SELECTOR, ".bar")) == 4


def test_one_size_shows_its_interval(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "one")
    first = page.find_element(By.CSS_SELECTOR, ".chart")
    whiskers, points = (first.find_elements(By.CSS_SELECTOR, css) for css in (".whisker", ".point"))
    assert len(whiskers) == len(points) == 13
    assert all(it.rect["height"] > 5 for it in whiskers)
    places = sorted(it.rect["x"] for it in points)
    assert all(right - left > 5 for left, right in pairwise(places)), "they hide each other"


def test_what_ifs_are_named(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "sweep")
    named = ["dgx-h100, 1.bandwidth=25GB/s", "dgx-h100, 1.bandwidth=50GB/s"]
    assert texts(page.find_element(By.TAG_NAME, "section"), ".legend li") == named
    assert "1.bandwidth" in texts(page, "th button")
    page.find_element(By.CSS_SELECTOR, "svg[tabindex]").send_keys(Keys.HOME)
    assert "1.bandwidth=25GB/s" in page.find_element(By.CSS_SELECTOR, ".tip b").text
    assert "the file has 50 GB/s" in page.execute_script("return document.body.textContent")


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_the_axes_can_be_read(browser, pages: Path, name: str, width: int) -> None:  # type: ignore[no-untyped-def]
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    page = opened(browser, pages, name)
    for chart in page.find_elements(By.CSS_SELECTOR, ".chart"):
        across = sorted((it.rect["x"], it.rect["width"]) for it in chart.find_elements(By.CSS_SELECTOR, "text.x"))
        assert all(x + wide < after for (x, wide), (after, _) in pairwise(across)), "overlap"
        assert len(chart.find_elements(By.CSS_SELECTOR, "text.y")) >= 3
    labels = [text for text in texts(page, "svg text") if text.startswith("cost")]
    assert all(text == "cost, $ k (does not start at 0)" for text in labels)
    assert len(labels) == (0 if name == "frontier" else 2)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(("width", "seen"), [(390, "cost"), (1200, "scaling")])
def test_the_table_shows_what_matters_first(browser, pages: Path, width: int, seen: str) -> None:  # type: ignore[no-untyped-def]
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    page = opened(browser, pages, "sweep")
    heads = page.find_elements(By.CSS_SELECTOR, "th button")
    head = next(it for it in heads if it.text == seen)
    assert head.rect["x"] + head.rect["width"] <= width
    assert "model" not in [it.text for it in heads]
    assert "cluster dgx-h100" in page.find_element(By.CSS_SELECTOR, ".alike").text
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_answer_in_time_and_its_limit(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    swept = str(pages / "days.parquet")
    job = ("--gpus", "64,128,256", "--tokens", "1T", "--tp", "1,2", "--pp", "1", "--max-days", "20")
    assert cli.main(["sweep", "llama-3.1-8b", "dgx-h100,dgx-a100", *job, "-o", swept]) == 0
    assert cli.main(["report", swept, "-o", str(pages / "days.html")]) == 0
    page = opened(browser, pages, "days")
    assert page.get_log("browser") == []
    told = read_frontier(swept, kinds=("sweep",)).provenance["answers"]
    for card, answer in zip(texts(page, ".card"), told["fewest"], strict=False):
        head, size, note = card.split("\n")
        assert head == f"{answer['machine'][1]}: in 20 days"
        assert size == f"{answer['gpus']} GPUs"
        assert f"{answer['gpus_low']} to {answer['gpus_high'] or 'more than any'}" in note
        assert ("no smaller size was swept" in note) is answer["smallest"]
    assert texts(page, "text.ruled") == ["limit: 20 days"]
    knees = texts(page, "section li:not(.legend li)")
    assert [text.split(" GPUs")[0] for text in knees] == [f"{it['machine'][1]}: {it['gpus']}" for it in told["knees"]]


def test_paper_is_light_and_has_no_buttons(browser, pages: Path) -> None:  # type: ignore[no-untyped-def]
    page = opened(browser, pages, "frontier")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.find_element(By.ID, "theme").is_displayed()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
