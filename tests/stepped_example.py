"""A function to be interleaved with itself: shows that `stepped_threads` stops threads between two lines."""


def write_three_lines(lines: list[str], who: str) -> None:
    lines.append(f"{who}1")
    lines.append(f"{who}2")
    lines.append(f"{who}3")
