"""The stored format that all committables share: its name in messages, and the remedy for a damaged one."""

from barrier_runtime.state.versioned import Format


def committable_format(version: int, undone: str = "committed") -> Format:
    """Of JSON with a field `version`, 1 to this one. `undone`: what the message says was not done with its rows."""
    return Format(
        "{}: a committable",
        version,
        damaged=f"nothing was {undone} or deleted; restore an intact copy of the checkpoint",
    )
