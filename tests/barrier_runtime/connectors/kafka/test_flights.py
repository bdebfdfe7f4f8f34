"""Flights of rows: a barrier waits for the rows that were handed over before it, and for no later rows."""

from barrier_runtime.connectors.kafka.sink.at_least_once import Flights


def test_a_flight_arrives_when_all_its_rows_are_acknowledged_after_its_end() -> None:
    flights = Flights()
    flight = flights.begin()
    flight.acknowledged = 2
    assert not flight.arrived, "more rows may follow"
    flight.sent = 3
    assert not flight.arrived
    flight.acknowledged = 3
    assert flight.arrived
    assert flights.unacknowledged() == ()


def test_a_write_without_rows_arrives_at_once() -> None:
    flight = Flights().begin()
    flight.sent = 0
    assert flight.arrived


def test_later_flights_do_not_hold_up_a_barrier_whatever_arrives_first() -> None:
    flights = Flights()
    before = flights.begin()
    before.sent = 1
    awaited = flights.unacknowledged()
    later = flights.begin()
    later.sent = later.acknowledged = 5
    assert not all(flight.arrived for flight in awaited)
    before.acknowledged = 1
    assert all(flight.arrived for flight in awaited)
    assert flights.unacknowledged() == ()


def test_landed_flights_between_others_are_forgotten() -> None:
    flights = Flights()
    first, second, third = (flights.begin() for _ in range(3))
    second.sent = second.acknowledged = 1
    assert flights.unacknowledged() == (first, third)
