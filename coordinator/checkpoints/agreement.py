"""What the subtasks of an operator must agree on before a checkpoint is decided. Pure.

A value whose name begins with `SHARED` is what every subtask will be given at a restore. So those that several subtasks
have must be the same bytes; a checkpoint in which they are not is never decided.
"""

from collections.abc import Iterable

from barrier_runtime.state.snapshots.snapshot import SHARED, SWITCHES, OperatorSnapshot


def disagreement(snapshots: Iterable[OperatorSnapshot]) -> str:
    """Why a checkpoint of these is not decided; "" if it may be."""
    first: dict[tuple[str, str], tuple[int, object]] = {}
    for snapshot in snapshots:
        content: dict[str, object] = {**snapshot.values, **{name: ref.sha256 for name, ref in snapshot.objects.items()}}
        for name, value in content.items():
            if not name.startswith(SHARED):
                continue
            subtask, agreed = first.setdefault((snapshot.operator, name), (snapshot.subtask, value))
            if value != agreed:
                where = f"in its subtasks {subtask} and {snapshot.subtask}"
                if name == SWITCHES:
                    return (
                        f"broadcast rows of operator {snapshot.operator!r} became valid behind other barriers {where}, "
                        "because an earlier checkpoint was aborted while its barriers were under way: the job begins "
                        "again at the last checkpoint, and nobody has to do anything"
                    )
                return (
                    f"broadcast state of operator {snapshot.operator!r} is not the same {where}: what handlers of "
                    "broadcast inputs write must depend on their rows and on broadcast state alone, not on random "
                    "numbers, a clock, ctx.subtask or attributes; correct them"
                )
    return ""
