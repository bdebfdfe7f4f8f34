"""Texts of limited length, for messages and pictures."""


def shortened(text: str, most: int = 200) -> str:
    """`text` of at most `most` characters; the end of a longer text is replaced by an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
