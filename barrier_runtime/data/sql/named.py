"""Functions known by Spark's name alone, however they are parsed."""

from collections.abc import Callable

from barrier_runtime.data.sql.arguments import Made
from barrier_runtime.data.sql.calendar import CALENDAR
from barrier_runtime.data.sql.collections import COLLECTIONS
from barrier_runtime.data.sql.numbers import NUMBERS
from barrier_runtime.data.sql.words import WORDS

# name -> least and greatest number of arguments, and the function that makes the expression
NAMED: dict[str, tuple[int, int | None, Callable[..., Made]]] = {**CALENDAR, **COLLECTIONS, **NUMBERS, **WORDS}
OTHER_NAMES = {"char": "chr", "date_diff": "datediff", "datepart": "date_part"}
NEVER_FAIL = frozenset({"array_contains", "concat_ws", "from_json", "get", "get_json_object", "isnotnull", "isnull"})
NEVER_FAIL |= {"map_keys", "map_values", "md5", "nvl2", "regexp_extract", "sha1", "sha2", "size", "split", "to_json"}
