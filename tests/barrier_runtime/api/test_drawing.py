"""Flows and streams draw themselves in notebooks: every step and edge, as well-formed SVG in which names are inert."""

from xml.etree import ElementTree

from barrier_runtime import CollectSink, Dataflow, count

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def edges(svg: str) -> int:
    return sum(each.get("class") == "be" for each in ElementTree.fromstring(svg).iter(f"{SVG}path"))


def test_a_flow_draws_all_its_steps_and_a_stream_what_leads_to_it() -> None:
    flow = Dataflow("drawn")
    numbers, others = flow.rate("numbers", 10, 10, keys=3), flow.rate("others", 10, 10, keys=3)
    both = numbers.union(others, name="both")
    both.key_by("key").aggregate("count", n=count()).sink("out", CollectSink())
    assert [name.partition(" ")[0] for name in boxes(flow._repr_svg_())] == [
        "numbers",
        "others",
        "both",
        "count",
        "out",
    ]
    assert edges(flow._repr_svg_()) == 4
    assert [name.partition(" ")[0] for name in boxes(both._repr_svg_())] == ["numbers", "others", "both"]
    assert boxes(numbers._repr_svg_()) == ["numbers (GeneratedRows)"]


def test_an_empty_flow_is_an_empty_picture() -> None:
    assert boxes(Dataflow("empty")._repr_svg_()) == []


def test_a_long_chain_is_drawn() -> None:
    flow = Dataflow("long")
    stream = flow.rate("numbers", 10, 10)
    for _ in range(300):
        stream = stream.map(dict)
    assert len(boxes(flow._repr_svg_())) == 301


def test_names_are_inert() -> None:
    flow = Dataflow("inert")
    rows = flow.rate("numbers", 10, 10)

    def function(row: dict[str, object]) -> dict[str, object]:
        return row

    function.__name__ = function.__qualname__ = '<script>alert("1")</script>'
    svg = rows.map(function)._repr_svg_()
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_flows_and_streams_say_what_they_are_in_a_line() -> None:
    flow = Dataflow("orders")
    assert repr(flow) == "<Dataflow orders: no steps yet>"
    rows = flow.rate("numbers", 10, 5, keys=2).select(["key", "value"])
    assert repr(rows) == "<Stream select of orders (key: int64, value: int64)>"
    assert repr(rows.key_by("key")) == f"<KeyedStream by key of {rows!r}>"
    assert repr(rows.map(dict)) == "<Stream map of orders (columns not known yet)>"
    assert repr(flow) == "<Dataflow orders: numbers, select, map>"
