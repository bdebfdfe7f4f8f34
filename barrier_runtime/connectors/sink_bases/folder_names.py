"""Names of folders for values of a column, `country=DE`, as Hive and Spark write them."""

import logging
import re
from functools import lru_cache

log = logging.getLogger("barrier_runtime.files")

NULL = "__HIVE_DEFAULT_PARTITION__"
_NULL_TEXT = "%5F" + NULL[1:]  # folder of a text that is equal to NULL
# Readers drop spaces at both ends, and Azure drops trailing dots.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]|^ |[ .]\Z")


def escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def folder_name(column: str, text: str | None) -> str:
    """Folder without a slash; distinct, except for null and empty text."""
    value = NULL if not text else _NULL_TEXT if text == NULL else escaped(text)
    return f"{escaped(column)}={value}"


@lru_cache(1_024)  # one warning per name
def say_empty(name: str, where: str) -> None:
    log.warning(
        "%s: rows with empty text in the partition_by column %r are read back as null, as with Spark: give them a text "
        "to tell them from null",
        where,
        name,
    )
