"""Writes README's tables of sources and targets from the registry, `barrier_runtime/connectors/registry.py`.

Run it after a change of the registry (`make tables`); `tests/house/test_connectors.py` fails when README is stale.
"""

from collections.abc import Iterable
from pathlib import Path

from barrier_runtime.connectors.registry import CONNECTORS, Sinks, Sources

README = Path(__file__).resolve().parents[1] / "README.md"
_BEGIN, _END = "<!-- {}: written by `make tables` -->\n", "<!-- end of {} -->"
_YOURS = (
    "| your `WriteAheadSink` | exactly once | for any target that takes an idempotency token |",
    "| your `TwoPhaseCommitSink` | what it declares | `docs/writing-a-sink.md`; `barrier_runtime.testing.certify` "
    "crashes it at every point |",
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
    """`text` of README with the tables between their marks written anew."""
    for name, table in (("sources", sources()), ("targets", targets())):
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END.format(name))
        if not begin or not end:
            raise SystemExit(f"README.md has no marks around the table of {name}: put them back: {_BEGIN.format(name)}")
        text = before + begin + table + end + after
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{README.name}: {len(CONNECTORS)} connectors")
