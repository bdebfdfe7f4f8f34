"""Refusals of `connect`, `broadcast` and `process` on streams without a key, at build time."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from barrier_runtime import (
    TTL,
    BroadcastState,
    CollectSink,
    Dataflow,
    InvalidJob,
    Stream,
    Tumbling,
    ValueState,
    connect,
    count,
)
from barrier_runtime.graph.compiler import compile_plan
from tests.waiting import until

Row = dict[str, Any]


class Both:
    limits = BroadcastState(str, float)

    def on_orders(self, key: int, row: Row, ctx: Any) -> None: ...

    def on_payments(self, key: int, row: Row, ctx: Any) -> None: ...

    def on_rules(self, row: Row, ctx: Any) -> None: ...


def streams(flow: Dataflow | None = None) -> tuple[Stream, Stream, Stream]:
    flow = flow or Dataflow("told")

    def read(name: str, **schema: Any) -> Stream:
        return flow.from_iterator(name, lambda index, of: iter(()), schema=schema, splits=1)

    return read("o", id=int, shop=str, at=int), read("p", order_id=int, eur=float, at=int), read("r", shop=str)


def connected(function: Any = Both, **options: Any) -> Any:
    orders, payments, rules = streams()
    inputs = connect(orders=orders.key_by("id"), payments=payments.key_by("order_id"), rules=rules.broadcast())
    return inputs.process("match", function, **options)


def without(name: str) -> type:
    return type("Both", (), {each: value for each, value in vars(Both).items() if each != name})


def with_(**methods: Any) -> type:
    return type("Both", (Both,), methods)


def timer(self: Any, key: int, at: int, ctx: Any) -> None: ...


HANDLERS: list[tuple[Any, str]] = [
    (without("on_payments"), r"connect 'match': Both has no method on_payments\(self, key, row, ctx\): add it"),
    (without("on_rules"), r"Both has no method on_rules\(self, row, ctx\): add it"),
    (
        type("Both", (without("on_payments"),), {"on_payment": Both.on_payments}),
        r"no method on_payments\(self, key, row, ctx\): call on_payment\(\) so",
    ),
    (
        with_(on_refunds=Both.on_orders),
        r"nothing calls Both.on_refunds\(\): its inputs are on_orders, on_payments, on_rul",
    ),
    (with_(on_timers=timer), r"nothing calls Both.on_timers\(\).*is on_timer\(\) meant"),
    (
        with_(on_rules=Both.on_orders),
        r"Both.on_rules\(\) takes \(self, key, row, ctx\): let it take \(self, row, ctx\)",
    ),
    (with_(on_orders=Both.on_rules), r"on_orders\(\) takes \(self, row, ctx\): let it take \(self, key, row, ctx\)"),
    (
        lambda key, row, ctx: None,
        r"is one function, and each input has a handler of its own: pass a class with on_orders",
    ),
    (with_(on_timer=timer), r"input 'orders': Both has timers, which the watermark drives, but source 'o'"),
]


@pytest.mark.parametrize(("function", "said"), HANDLERS)
def test_handlers_that_are_missing_unknown_or_of_other_arguments_are_told(function: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        connected(function)


def test_handlers_may_be_those_of_an_object_static_or_take_anything() -> None:
    connected(Both())
    connected(with_(on_orders=staticmethod(lambda key, row, ctx: None), on_rules=lambda *all: None))


INPUTS: list[tuple[Callable[[Stream, Stream, Stream], Any], str]] = [
    (lambda o, p, r: connect(), "no inputs: pass streams by name"),
    (lambda o, p, r: connect(o.key_by("id")), r"every input has a name, as in connect\(orders=orders.key_by"),
    (lambda o, p, r: connect(orders=o), r"input 'orders' is a Stream: .* with .key_by\(…\) or .broadcast\(\)"),
    (lambda o, p, r: connect(orders=3), "input 'orders' is 3: pass a stream"),
    (lambda o, p, r: connect(rules=r.broadcast()), "no input has a key: pass one or more"),
    (
        lambda o, p, r: connect(timer=o.key_by("id")),
        r"on_timer\(\) is a handler of timers: give the input 'timer' anoth",
    ),
    (
        lambda o, p, r: connect(o=o.key_by("id"), p=p.key_by("eur")),
        r"key of input 'o' is \(id: int64\), and that of 'p' \(eur: double\): .* cast one of them before key_by",
    ),
    (
        lambda o, p, r: connect(o=o.key_by("id", "shop"), p=p.key_by("order_id")),
        r"input 'o' has the keys \(id, shop\), and 'p' has \(order_id\).*as many columns in each",
    ),
    (
        lambda o, p, r: connect(o=o.key_by("id"), p=streams(Dataflow("another"))[1].key_by("order_id")),
        "'o' is a stream of flow 'told', and 'p' one of flow 'another': read both in one Dataflow",
    ),
    (
        lambda o, p, r: connect(o=o.key_by("id"), a=r.broadcast(), b=r.map(dict).broadcast()),
        "columns of the broadcast input 'b' are not known, and several broadcast inputs travel together",
    ),
    (lambda o, p, r: o.key_by("id").broadcast(), r"KeyedStream has no method 'broadcast': it comes before .key_by"),
    (
        lambda o, p, r: r.broadcast().map(dict),
        r"BroadcastStream has no method 'map': a broadcast stream is an input of co",
    ),
    (
        lambda o, p, r: o.connect(p),
        "Stream has no method 'connect': connect is a function: from barrier_runtime import",
    ),
    (lambda o, p, r: o.key_by("id").connect(p), "KeyedStream has no method 'connect': connect is a function"),
    (
        lambda o, p, r: o.key_by("id").process("p", type("F", (), {"s": BroadcastState(int, int), "process": timer})),
        r"state 's' is a BroadcastState, which only rows of a broadcast input can change: .*connect\(…, rules=",
    ),
]


@pytest.mark.parametrize(("write", "said"), INPUTS)
def test_inputs_that_do_not_go_together_are_told(write: Callable[[Stream, Stream, Stream], Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        write(*streams())


def expiring(self: Any, key: int, row: Row, ctx: Any) -> None: ...


OPTIONS: list[tuple[Row, str]] = [
    ({"event_time": "shop"}, "connect 'match', input 'payments'.* no column 'shop'|'shop'"),
    (
        {"event_time": {"refunds": "at"}},
        "event_time= names 'refunds', but its inputs are 'orders', 'payments', 'rules'",
    ),
    ({"event_time": 3}, "event_time=3: give a text or a mapping of texts or None"),
    ({"event_time": {"rules": "shop"}}, "shop"),
    ({"function": with_(last=ValueState(int, ttl=TTL(timedelta(1))))}, "TTL in event time, but the step does not know"),
    (
        {"function": with_(last=ValueState(int, ttl=TTL(timedelta(1)))), "event_time": {"orders": "at"}},
        "TTL in event time, but the step does not know",
    ),
    (
        {"function": with_(last=ValueState(int, ttl=TTL(timedelta(1)))), "event_time": "at"},
        "state 'last' has a TTL in event time, which the watermark drives, but source 'o' of its rows has none",
    ),
    ({"on_error": "ignore"}, 'on_error=\'ignore\': use "fail", "skip", "side" or a Retry'),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_options_that_do_not_suit_the_inputs_are_told(options: Row, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        connected(**options)


def test_a_step_is_named() -> None:
    orders, _, _ = streams()
    with pytest.raises(InvalidJob, match=r"process: name=<type>: give a text: the first argument is the step's name"):
        connect(orders=orders.key_by("id")).process(Both, "match")  # type: ignore[call-overload]


class Keyed:
    def process(self, key: int, row: Row, ctx: Any) -> None: ...


class Stateful:
    total = ValueState(int)

    def process(self, row: Row, ctx: Any) -> None: ...


class Timed:
    on_timer = timer

    def process(self, row: Row, ctx: Any) -> None: ...


FUNCTIONS: list[tuple[Any, str]] = [
    (Keyed, r"Keyed\(\) takes \(self, key, row, ctx\): .* gives \(row, ctx\); for \(key, row, ctx\) call .key_by"),
    (lambda key, row, ctx: None, r"takes \(key, row, ctx\): a stream without key gives \(row, ctx\)"),
    (Stateful, r"Stateful keeps state \(total\), and state belongs to a key: call .key_by"),
    (Timed, r"Timed has on_timer\(\), and timers belong to a key: call .key_by"),
    (Dataflow, r"is neither a function of \(row, ctx\) nor has it process\(self, row, ctx\)"),
    (3, r"3 is neither a function"),
]


@pytest.mark.parametrize(("function", "said"), FUNCTIONS)
def test_a_function_without_key_that_wants_one_is_told(function: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        streams()[0].process("step", function)


class Reminded:
    """Reminds of each key one second later, in event time."""

    rules = BroadcastState(str, int)
    recent = ValueState(int, default=0, ttl=TTL(1, clock="event"))

    def on_rules(self, row: Any, ctx: Any) -> None:
        self.rules[row["rule"]] = 1

    def on_orders(self, key: Any, row: Any, ctx: Any) -> None:
        self.recent.value += 1
        ctx.timers.register(row["at"] + 1_000)

    def on_timer(self, key: Any, at_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"key": key, "at": at_ms}


@pytest.mark.slow
@pytest.mark.parametrize("steady", [False, True], ids=["a single rule", "rules without end"])
@pytest.mark.parametrize("window", [False, True], ids=["timers", "a window behind"])
def test_rules_without_event_time_hold_no_timer_and_no_window_back(window: bool, steady: bool) -> None:
    out = CollectSink()

    def given_rules() -> Iterator[dict[str, Any]]:
        while steady and not out.rows():
            yield {"rule": "a"}
            time.sleep(0.01)
        yield from until_visible({"rule": "a"})

    def until_visible(*rows: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from rows
        until(lambda: out.rows() != [], "a timer fires while both sources wait")

    flow = Dataflow("reminders")
    given = [{"key": 1, "at": n * 1_000} for n in range(10)]
    orders = flow.from_iterator(
        "orders", lambda part, of: until_visible(*given), schema={"key": int, "at": int}, splits=1, event_time="at"
    )
    rules = flow.from_iterator("rules", lambda part, of: given_rules(), schema={"rule": str}, splits=1)
    connected = connect(orders=orders.key_by("key"), rules=rules.broadcast())
    made = connected.process("remind", Reminded, schema={"key": int, "at": int})
    if window:
        made = made.key_by("key").window("seconds", Tumbling(1), event_time="at").aggregate(n=count())
    made.sink("out", out)
    flow.run_local(parallelism=2, checkpoint_interval=0.1)
    assert out.rows()


def test_only_broadcast_inputs_without_event_time_hold_nothing_back() -> None:
    flow = Dataflow("inputs")

    def read(name: str, event_time: str | None = None) -> Stream:
        return flow.from_iterator(
            name, lambda part, of: iter(()), schema={"key": int, "at": int}, splits=1, event_time=event_time
        )

    inputs = connect(
        orders=read("o", "at").key_by("key"), payments=read("p").key_by("key"),
        rules=read("r").broadcast(), rates=read("t", "at").broadcast(),
    )  # fmt: skip
    inputs.process("match", with_(on_rates=lambda self, row, ctx: None)).sink("out", CollectSink())
    graph = compile_plan(flow.plan, 1)
    names = {chain.id: chain.name.split(" ")[0] for chain in graph.chains}
    assert {names[edge.source_chain] for edge in graph.edges if edge.timeless} == {"r"}


def test_one_broadcast_input_with_event_time_is_enough_for_a_window_behind() -> None:
    flow = Dataflow("inputs")
    orders, rules, rates = (
        flow.from_iterator(name, lambda part, of: iter(()), schema={"key": int, "at": int}, splits=1, event_time=time)
        for name, time in (("o", "at"), ("r", None), ("t", "at"))
    )
    inputs = connect(orders=orders.key_by("key"), rules=rules.broadcast(), rates=rates.broadcast())
    timed = type("Timed", (Reminded,), {"on_rates": lambda self, row, ctx: None})
    made = inputs.process("remind", timed, schema={"key": int, "at": int}).key_by("key")
    made.window("seconds", Tumbling(1), event_time="at").aggregate(n=count()).sink("out", CollectSink())
    assert compile_plan(flow.plan, 1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["unions", "a chain"])
def test_rules_and_earlier_streams_may_come_through_any_number_of_steps(shape: str) -> None:
    orders, _, rules = streams()
    for _ in range(40 if shape == "unions" else 1_200):
        some = rules.filter("shop > 'a'")
        rules = some.union(rules.filter("shop < 'a'")) if shape == "unions" else some
    assert connect(orders=orders.key_by("id"), rules=rules.broadcast()).process("match", without("on_payments"))
    with pytest.warns(UserWarning, match="followed_by 'later'"):
        rules.followed_by("later", orders.select({"shop": "shop"}))
