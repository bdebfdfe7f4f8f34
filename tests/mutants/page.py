"""Mutants of the coordinator's page: access, filtering of content, and data shared by all open pages."""

from tests.mutants.mutant import Mutant

_PAGES = "coordinator/server/web/pages.py"
_SESSIONS = "coordinator/server/web/sessions.py"
_TICKER = "coordinator/server/web/ticker.py"
_RENDER = "coordinator/page/render.py"
_PAGE_TESTS = ("tests/coordinator/server/web/test_pages.py",)
_SESSION_TESTS = ("tests/coordinator/server/web/test_page_sessions.py",)
_TICKER_TESTS = ("tests/coordinator/server/web/test_ticker.py",)
_RENDERING_TESTS = ("tests/coordinator/page/test_rendering.py",)

MUTANTS = (
    Mutant(
        "pages-without-a-session",
        "without a session there is only the login page",
        _SESSIONS,
        'is_open(scope["path"]) or self._sessions.of_cookies(cookies, now_ms()) is not None',
        "True",
        _PAGE_TESTS,
    ),
    Mutant(
        "sessions-that-do-not-end",
        "a session ends by its time",
        _SESSIONS,
        "ends if now_ms < ends <= now_ms + self._lasts_ms + _CLOCKS_APART_MS else None",
        "ends",
        _SESSION_TESTS,
    ),
    Mutant(
        "links-that-work-twice",
        "a link logs in once",
        _PAGES,
        "            if not await asyncio.to_thread(use, self._source.store, mark, now_ms()):\n",
        "            if await asyncio.to_thread(use, self._source.store, mark, now_ms()) is None:\n",
        _PAGE_TESTS,
    ),
    Mutant(
        "wrong-tokens-at-any-pace",
        "after five wrong tokens the next attempt waits",
        _PAGES,
        "            self._throttle.wrong(client, now_ms())\n",
        "",
        ("tests/coordinator/server/web/test_pages.py",),
    ),
    Mutant(
        "looking-ahead-uses-links-up",
        "a HEAD request leaves a login link as it was",
        _PAGES,
        ' or request.method == "HEAD"',
        "",
        _PAGE_TESTS,
    ),
    Mutant(
        "sessions-make-links",
        "a session cannot make itself longer",
        "coordinator/server/rest.py",
        '        if not _caller(request).holds_token:\n            raise HTTPException(403, "a new link',
        '        if False:\n            raise HTTPException(403, "a new link',
        _PAGE_TESTS,
    ),
    Mutant(
        "sessions-learn-secrets",
        "a session gets no secret of a job",
        "coordinator/server/rest.py",
        "        if not caller.holds_token:\n",
        "        if False:\n",
        _PAGE_TESTS,
    ),
    Mutant(
        "two-proofs-of-a-caller",
        "a call has one Authorization header, so that check and answer use the same",
        "coordinator/server/guard.py",
        "        refusal = _why_ambiguous(scope) or ",
        "        refusal = ",
        ("tests/coordinator/server/test_signed_calls.py",),
    ),
    Mutant(
        "names-turn-the-text-round",
        "characters that change how others are shown are written out",
        _RENDER,
        'return _UNSEEN.sub(lambda found: f"\\\\u{ord(found[0]):04x}", html)',
        "return html",
        _RENDERING_TESTS,
    ),
    Mutant(
        "reports-with-secrets",
        "a report masks what looks like a secret",
        _RENDER,
        "        masked(facts.status),\n",
        "        facts.status,\n",
        _RENDERING_TESTS,
    ),
    Mutant(
        "a-page-per-tick",
        "charts are fetched anew every few seconds, not with every tick",
        _TICKER,
        "(at_once or now_s - topic.page_s >= PAGE_S)",
        "True",
        _TICKER_TESTS,
    ),
    Mutant(
        "ticks-for-nobody",
        "nothing ticks while nobody looks",
        _TICKER,
        "                self._topics.pop(name, None)\n",
        "                pass\n",
        _TICKER_TESTS,
    ),
)
