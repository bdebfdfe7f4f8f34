"""Numbers of examples or seeds per test, by the profiles of tests/conftest.py. A test names a number; `make test`
draws a quarter of the examples, `make check` a tenth, `make oracle` ten times as many. `make check` draws a fifth of
the seeds, because the others are marked slow. `make oracle` runs the tests of hypothesis and those marked `draws`.
"""

from typing import Any

import pytest
from hypothesis import settings

FEWEST = 4
OF = settings.get_profile("default").max_examples


def examples(count: int, **others: Any) -> settings:
    """`@examples(300)` is written in the place of `@settings(max_examples=300, deadline=None)`."""
    drawn = max(count * settings.default.max_examples // OF, min(count, FEWEST))
    return settings(max_examples=drawn, deadline=None, **others)


def some(count: int) -> range:
    """Seeds of a test marked `draws`, as in `for seed in some(80)`: as many as the examples of `@examples(80)`, at
    least one.
    """
    return range(max(1, count * settings.default.max_examples // OF))


def seeds(count: int) -> list[Any]:
    """`parametrize("seed", seeds(40))` is written in the place of `parametrize("seed", range(40))`."""
    return [seed if seed < count // 5 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]
