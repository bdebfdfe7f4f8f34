"""A plan as SVG, for notebooks: a box per source, step and sink, from left to right. Pure, and nothing is compiled.

A box is as far right as the longest way from a source. Names come from users, so they are escaped.
"""

from html import escape

import pyarrow as pa

from barrier_runtime.graph.logical import Node, Plan, SourceNode

_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _EDGE = 184, 44, 44, 16, 8
_NAME, _KIND = 22, 26  # characters that fit
_LOOK = (
    "<style>.bn rect{fill:#fff;stroke:#667;stroke-width:1.2}.bn.at rect{stroke:#06c;stroke-width:2.4}"
    ".bn.end rect{fill:#eef3f8}.bn text{font:13px sans-serif;fill:#223}.bn .kind{font-size:11px;fill:#667}"
    ".be{fill:none;stroke:#889;stroke-width:1.4}</style>"
)


def drawn(plan: Plan, at: int | None = None) -> str:
    """`at`: a node to be marked, and only what leads to it is drawn; None: all."""
    shown = range(len(plan.nodes)) if at is None else _leading_to(plan, at)
    column: dict[int, int] = {}
    rows: dict[int, int] = {}  # of each column: how many boxes
    place: dict[int, tuple[int, int]] = {}
    for number in shown:  # inputs have lower numbers
        column[number] = 1 + max((column[each] for each in _inputs(plan, number)), default=-1)
        row = rows.get(column[number], 0)
        rows[column[number]] = row + 1
        x, y = _EDGE + column[number] * (_BOX_W + _GAP_X), _EDGE + row * (_BOX_H + _GAP_Y)
        place[number] = x, y
    width = 2 * _EDGE + len(rows) * (_BOX_W + _GAP_X) - (_GAP_X if rows else 0)
    height = 2 * _EDGE + max(rows.values(), default=0) * (_BOX_H + _GAP_Y) - (_GAP_Y if rows else 0)
    edges = [_edge(place[each], place[number]) for number in shown for each in _inputs(plan, number)]
    boxes = [_box(plan, number, place[number], marked=number == at) for number in shown]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(f"dataflow {plan.name}: {len(place)} of {len(plan.nodes)} steps")
    return f'{head} role="img" aria-label="{label}">{_LOOK}{"".join(edges)}{"".join(boxes)}</svg>'


def name_of(node: Node) -> str:
    """Its name, or what it is."""
    return node.name or ("source" if isinstance(node, SourceNode) else node.kind)


def told(plan: Plan, at: int, schema: pa.Schema | None) -> str:
    """A stream in one line: the step that gives it, and its columns if they are known."""
    columns = "columns not known yet" if schema is None else ", ".join(f"{each.name}: {each.type}" for each in schema)
    return f"{name_of(plan.nodes[at])} of {plan.name} ({columns})"


def _inputs(plan: Plan, number: int) -> list[int]:
    node = plan.nodes[number]
    return [] if isinstance(node, SourceNode) else list(dict.fromkeys(each.node for each in node.inputs))


def _leading_to(plan: Plan, at: int) -> list[int]:
    found, waiting = {at}, [at]
    while waiting:
        new = set(_inputs(plan, waiting.pop())) - found
        found |= new
        waiting += new
    return sorted(found)


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _BOX_W, source[1] + _BOX_H // 2
    x2, y2 = target[0], target[1] + _BOX_H // 2
    middle = (x1 + x2) // 2
    return f'<path class="be" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"/>'


def _box(plan: Plan, number: int, place: tuple[int, int], *, marked: bool) -> str:
    node = plan.nodes[number]
    is_source = isinstance(node, SourceNode)
    kind = type(node.source).__name__ if isinstance(node, SourceNode) else node.kind
    ends = " end" if is_source or getattr(node, "is_sink", False) else ""
    x, y = place
    return (
        f'<g class="bn{ends}{" at" if marked else ""}"><title>{escape(f"{node.name or kind} ({kind})")}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="6"/>'
        f'<text x="{x + 9}" y="{y + 19}">{escape(_cut(node.name or kind, _NAME))}</text>'
        f'<text class="kind" x="{x + 9}" y="{y + 35}">{escape(_cut(kind, _KIND))}</text></g>'
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
