"""Output of the commands `replay` and `verify`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from barrier_runtime.replay import ReplayedRow, Verified, replay, verify
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.state_tables.wanted_keys import condition, key_types, value_of_text

if TYPE_CHECKING:
    from barrier_runtime.api.dataflow import Dataflow


def replayed(
    flow: "Dataflow",
    operator: str,
    keys: Sequence[str],
    after: str,
    until: str | None,
    checkpoints: str | None,
    *,
    row: str | None,
    stop: bool,
    redact: Sequence[str],
) -> int:
    """Prints each replayed row. Returns the exit code: 1 if a function raised."""
    key = _key(flow, operator, keys)
    done = replay(
        flow,
        operator,
        key,
        after=_number(after),
        until=None if until is None else _number(until),
        checkpoints=checkpoints,
        row=row,
        stop=stop,
        redact=redact,
        told=lambda each: print("\n".join(lines(each)), flush=True),
    )
    print(f"{counted(len(done.rows), 'row')} looked at, {counted(done.read, 'row')} read from sources")
    if done.unread:
        were = "was not read to its end" if done.unread == 1 else "were not read to their end"
        print(f"no rows came for a while: {counted(done.unread, 'split')} {were}")
    if done.without_state:
        print(done.without_state)
    if done.error:
        print(f"the replay ended with an error, as the job did:\n{done.error}")
        return 1
    return 0


def lines(row: ReplayedRow) -> list[str]:
    at = "" if row.reached_ms is None else f", event time {row.reached_ms} ms"
    came = "time alone" if row.row is None else _json(row.row)
    told = [f"row {row.number}{f', input {row.port}' if row.port else ''}{at}: {came}"]
    for name in sorted({*row.before, *row.after}):
        before, after = row.before.get(name), row.after.get(name)
        changed = _json(after) if before == after else f"{_json(before)} -> {_json(after)}"
        told.append(f"  state {name}: {changed}")
    told += [f"  emitted: {_json(each)}" for each in row.emitted]
    told += [f"  emitted to {tag}: {_json(each)}" for tag, rows in row.side.items() for each in rows]
    if row.error:
        told.append(f"  raised: {row.error.strip().splitlines()[0]}")
    return told


def verified(
    flow: "Dataflow", after: str, until: str | None, checkpoints: str | None, redact: Sequence[str]
) -> tuple[str, bool]:
    found: Verified = verify(
        flow,
        after=_number(after),
        until=None if until is None else _number(until),
        checkpoints=checkpoints,
        redact=redact,
    )
    more = [f"  {each}" for each in found.differences]
    return "\n".join([str(found), *more[1:]]), found.same


def _number(told: str) -> int | str:
    return int(told) if told.isdigit() else told


def _key(flow: "Dataflow", operator: str, told: Sequence[str]) -> Any:
    """Key from `told`: a value (see `value_of_text`) of a single column, or column=value for each column."""
    if not told:
        return None
    types = _types(flow, operator)
    given = [(each, condition(each, types)) for each in told]
    if len(given) == 1 and given[0][1] is None:
        return value_of_text(told[0], types.get("", ""))
    found: dict[str, Any] = {}
    for text, one in given:
        if one is None:
            raise InvalidJob(f"--key {text!r}: of several columns write each as column=value, or as 'column is null'")
        found[one[0]] = one[1]
    return found


def _types(flow: "Dataflow", operator: str) -> dict[str, str]:
    """Types of the key's columns by name; a single column also under ""."""
    told = next((node.keys for node in flow.plan.nodes if node.name == operator and hasattr(node, "keys")), "")
    types = key_types(told)
    return types if len(types) != 1 else {**types, "": next(iter(types.values()))}


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
