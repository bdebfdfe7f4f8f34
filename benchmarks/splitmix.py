"""The arithmetic of `benchmarks.events` for a single row, in plain Python. Pure.

Side environments have no numpy.
"""

_MASK = 0xFFFFFFFFFFFFFFFF


def mixed(number: int) -> int:
    """splitmix64."""
    z = (number + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key_of(random: int, keys: int) -> int:
    """Uniform in 0 … keys-1."""
    return (random >> 20) % keys
