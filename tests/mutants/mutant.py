"""A mutant: one small change of the product that breaks one rule, and the tests that have to detect the change."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in `file` (relative to the repository) and becomes `new`. `checks`: the cheapest test
    files or tests that find the mutant, as arguments of pytest.
    """

    name: str
    rule: str  # the broken rule, as a sentence
    file: str
    old: str
    new: str
    checks: tuple[str, ...]
