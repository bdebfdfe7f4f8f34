"""Sessions, links and delays of the page's login, at every moment that matters: pure, the test turns the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.server.web.sessions import (
    FREE_ATTEMPTS,
    LINK_MS,
    SESSION_MS,
    LoginLinks,
    LoginThrottle,
    PageSessions,
)

NOW = 1_790_000_000_000


def test_a_session_holds_until_its_end_in_every_process_with_the_token():
    """G2."""
    value = PageSessions(b"token").begin("n", NOW)
    again = PageSessions(b"token")
    assert again.ends_ms(value, NOW) == NOW + SESSION_MS
    assert again.ends_ms(value, NOW + SESSION_MS - 1) == NOW + SESSION_MS
    assert again.ends_ms(value, NOW + SESSION_MS) is None
    assert PageSessions(b"another").ends_ms(value, NOW) is None
    assert PageSessions(b"another").cookie != again.cookie


def test_a_session_of_a_clock_that_was_far_ahead_does_not_hold_for_years():
    sessions = PageSessions(b"token")
    assert sessions.ends_ms(sessions.begin("n", NOW + SESSION_MS), NOW) is None


@pytest.mark.parametrize("behind_ms", [1, 2_000, 60_000])
def test_a_clock_that_is_a_little_behind_opens_what_another_one_has_signed(behind_ms):
    """A standby's clock, or the same machine's that was set back between the link and the click."""
    sessions, links = PageSessions(b"token"), LoginLinks(b"token")
    assert sessions.ends_ms(sessions.begin("n", NOW), NOW - behind_ms) == NOW + SESSION_MS
    assert links.mark(links.make("n", NOW), NOW - behind_ms) is not None


@given(st.integers(0, 200), st.characters())
def test_a_changed_session_is_none(index, character):
    """G2."""
    sessions = PageSessions(b"token")
    value = sessions.begin("n", NOW)
    changed = value[: index % len(value)] + character + value[index % len(value) + 1 :]
    assert changed == value or sessions.ends_ms(changed, NOW) is None


@pytest.mark.parametrize("value", ["", ".", "..", "x", "9" * 400, f"{NOW + 1}.n.", "\udcff.n.é"])
def test_what_is_no_session_is_none(value):
    assert PageSessions(b"token").ends_ms(value, NOW) is None


def test_the_session_is_found_among_other_cookies():
    sessions = PageSessions(b"token")
    value = sessions.begin("n", NOW)
    assert sessions.of_cookies(f"a=b; {sessions.cookie}={value};c", NOW) == NOW + SESSION_MS
    assert sessions.of_cookies(f"a=b; x{sessions.cookie}={value}", NOW) is None
    assert sessions.of_cookies("", NOW) is None


def test_a_link_holds_for_an_hour_at_every_process_with_the_token():
    """G2: what is noted of a link's use names the link, and neither the code nor the token can be found from that."""
    code = LoginLinks(b"token").make("n", NOW)
    again = LoginLinks(b"token")
    mark = again.mark(code, NOW)
    assert mark == again.mark(code, NOW + LINK_MS - 1)
    assert mark.startswith(f"{NOW + LINK_MS}-")
    assert code not in mark
    assert again.mark(code, NOW + LINK_MS) is None
    assert again.mark(code, NOW - 600_000) is None, "of a clock that was ahead: it must not hold for longer"
    assert again.is_ours(code)
    assert again.mark(again.make("m", NOW), NOW) != mark


@given(st.integers(0, 200), st.characters())
def test_a_changed_link_opens_nothing(index, character):
    """G2."""
    links = LoginLinks(b"token")
    code = links.make("n", NOW)
    changed = code[: index % len(code)] + character + code[index % len(code) + 1 :]
    assert changed == code or links.mark(changed, NOW) is None


@pytest.mark.parametrize("value", ["", ".", "..", "x", "9" * 400, f"{NOW + 1}.n.", "\udcff.n.é"])
def test_what_is_no_link_opens_nothing(value):
    links = LoginLinks(b"token")
    assert links.mark(value, NOW) is None
    assert not links.is_ours(value)


def test_a_session_is_no_link_and_a_link_no_session_nor_one_of_another_token():
    """G2."""
    sessions, links = PageSessions(b"token"), LoginLinks(b"token")
    assert links.mark(sessions.begin("n", NOW), NOW) is None
    assert sessions.ends_ms(links.make("n", NOW), NOW) is None
    assert LoginLinks(b"another").mark(links.make("n", NOW), NOW) is None


def test_wrong_tokens_delay_their_client_and_nobody_else():
    """G5: the fifth wrong token begins the delay; it doubles, up to a minute."""
    throttle = LoginThrottle()
    waits = []
    now = NOW
    for _ in range(14):
        waits.append(throttle.wait_ms("a", now))
        now += waits[-1]
        throttle.wrong("a", now)
    assert waits == [0] * FREE_ATTEMPTS + [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert throttle.wait_ms("b", now) == 0
    assert throttle.wait_ms("a", now + 59_999) == 1
    assert throttle.wait_ms("a", now + 60_000) == 0


def test_a_right_token_or_a_long_time_begins_anew():
    throttle = LoginThrottle()
    for _ in range(FREE_ATTEMPTS):
        throttle.wrong("a", NOW)
    throttle.right("a")
    assert throttle.wait_ms("a", NOW) == 0
    for _ in range(FREE_ATTEMPTS):
        throttle.wrong("a", NOW)
    throttle.wrong("a", NOW + 16 * 60_000)
    assert throttle.wait_ms("a", NOW + 16 * 60_000) == 0


def test_a_clock_that_jumps_back_locks_nobody_out():
    throttle = LoginThrottle()
    for _ in range(FREE_ATTEMPTS):
        throttle.wrong("a", NOW)
    assert throttle.wait_ms("a", NOW - 10**9) == 1_000


def test_clients_are_bounded():
    throttle = LoginThrottle()
    for number in range(3_000):
        throttle.wrong(str(number), NOW)
    assert len(throttle._wrong) == 1_000
