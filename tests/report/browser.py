"""A headless Chromium that the tests drive, and what it noticed."""

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

MISSING = "the report's tests need chromium and chromedriver: apt-get install -y chromium chromium-driver"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


class Page:
    """One opened page. `errors` and `requests` are what happened since it was opened."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, file: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> float:
        """Load a file in a window of this size; gives the seconds until all parts were drawn."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # a window that nobody has typed into may not have the focus, and its elements then get no focus events
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what was there before is not this page's
        started = time.perf_counter()
        self.driver.get(file.as_uri())
        self.wait(lambda: self.js("return document.body.dataset.ready === 'yes'"))
        return time.perf_counter() - started

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.js(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
        )]  # fmt: skip

    def wait(self, holds: Callable[[], Any], seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.02)

    def errors(self) -> list[str]:
        """Everything on the console that is a warning or worse."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A browser with a fresh profile in `folder`. Without a browser the test fails and says what to install."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail(MISSING, pytrace=False)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Page(found)
    finally:
        found.quit()
        # selenium opens addresses with urllib, which then remembers for the whole process that there was no proxy
        urllib.request.install_opener(None)  # type: ignore[arg-type]
