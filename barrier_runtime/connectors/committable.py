"""Stored format of all committables: the name in messages, and the remedy for a damaged committable."""

from barrier_runtime.state.versioned import Format


def committable_format(version: int, undone: str = "committed") -> Format:
    """Returns the JSON format with a field `version` from 1 to `version`.
    `undone`: the verb of the damage message."""
    return Format(
        "{}: a committable",
        version,
        damaged=f"nothing was {undone} or deleted; restore an intact copy of the checkpoint",
    )
