"""Which releases of PySpark carry what: the refusal of one that is too old, as a sentence."""

FROM_SPARK = (4, 2)  # to_arrow_schema takes a time zone


def refusal(subject: str, found: str, needed: tuple[int, int]) -> str | None:
    """The sentence that refuses PySpark `found` for `subject`, or None when it is new enough."""
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) >= needed:
        return None
    least = f"{needed[0]}.{needed[1]}"
    return f"{subject}: PySpark {found} is installed, {least} or newer is needed: pip install 'pyspark>={least},<5'"
