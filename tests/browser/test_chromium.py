"""The browser itself works here, and the fixtures notice errors of a page."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext

from tests.browser.conftest import Watched


def test_chromium_runs_scripts_and_their_errors_are_seen(
    context: Callable[..., BrowserContext], watched: Watched
) -> None:
    page = context().new_page()
    watched.watch(page)
    page.set_content("<p id=p></p>")
    page.evaluate("document.querySelector('#p').textContent = 1 + 1")
    assert page.inner_text("#p") == "2"
    with page.expect_event("pageerror"):
        page.evaluate("console.error('a planted error'); setTimeout(() => { throw new Error('another') })")
    assert watched.troubles == ["console: a planted error", "script: another"]
    watched.expected = ["planted", "another"]
