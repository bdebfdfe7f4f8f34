"""Ranges of ports."""

import pytest

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.sockets import ANY_PORT, PortRange, port_range


def test_a_range_has_both_ends():
    assert list(port_range("7200-7202", "slot_ports")) == [7200, 7201, 7202]
    assert port_range(" 7200 ", "slot_ports") == PortRange(7200, 7200)
    assert (str(PortRange(7200, 7202)), str(PortRange(7200, 7200))) == ("7200-7202", "7200")


def test_without_a_range_the_system_chooses():
    assert list(port_range("", "slot_ports")) == [0]
    assert list(ANY_PORT) == [0]


@pytest.mark.parametrize(
    "text", ["7300-7200", "0", "0-9", "70000", "7200-", "-7200", "a-b", "7200,7201", "7200-7300-7400"]
)
def test_other_texts_are_refused_by_name(text):
    with pytest.raises(InvalidJob, match=f"^slot_ports={text!r} is no range of ports: give two ports from 1 to 65535"):
        port_range(text, "slot_ports")
