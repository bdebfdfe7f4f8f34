"""Texts of limited length, for messages and pictures."""


def shortened(text: str, most: int = 200) -> str:
    """`text` of at most `most` characters; the end of a longer text is replaced by an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 row", "2,000 rows"; `plural`: where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
