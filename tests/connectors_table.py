"""Writes the tables of sources and targets in docs/connectors.md from `barrier_runtime/connectors/registry.py`.

Run this file after a change of the registry (`make tables`); `tests/house/test_connectors.py` fails when the page is
stale.
"""

from collections.abc import Iterable
from pathlib import Path

from barrier_runtime.connectors.registry import CONNECTORS, Sinks, Sources

PAGE = Path(__file__).resolve().parents[1] / "docs" / "connectors.md"
_BEGIN, _END = "<!-- {}: written by `make tables` -->\n", "<!-- end of {} -->"
_YOURS = (
    "| your `WriteAheadSink` | exactly once | for any target that takes an idempotency token |",
    "| your `TwoPhaseCommitSink` | as declared | [writing a sink](writing-a-sink.md); "
    "`barrier_runtime.testing.certify` crashes it at every point |",
)


def sources() -> str:
    rows = [_source(row) for connector in CONNECTORS for row in connector.sources]
    return _table("| source | the same as a method | positions | |", "|---|---|---|---|", rows)


def targets() -> str:
    rows = [_sink(row) for connector in CONNECTORS for row in connector.sinks]
    return _table("| target | guarantee | how |", "|---|---|---|", [*rows, *_YOURS])


def _source(row: Sources) -> str:
    return f"| {_code(each.name for each in row.classes)} | {_code(row.methods)} | {row.positions} | {row.notes} |"


def _sink(row: Sinks) -> str:
    names = _code(each.name for each in row.classes) + (f", {row.also}" if row.also else "")
    return f"| {names} | {row.guarantee} | {row.how} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: str, rule: str, rows: list[str]) -> str:
    return "".join(f"{line}\n" for line in (head, rule, *rows))


def with_tables(text: str) -> str:
    """`text` of the page with the tables between their marks written anew."""
    for name, table in (("sources", sources()), ("targets", targets())):
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END.format(name))
        if not begin or not end:
            raise SystemExit(
                f"docs/connectors.md has no marks around the table of {name}: put them back: {_BEGIN.format(name)}"
            )
        text = before + begin + table + end + after
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name}: {len(CONNECTORS)} connectors")
