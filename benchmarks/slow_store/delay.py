"""Answer time of a service: log-normal around a median, with a share of much later answers."""

import random

import msgspec


class Delay(msgspec.Struct, frozen=True):
    """Milliseconds. The defaults are for Amazon S3 within a region; S3 Express answers in about 5."""

    median_ms: float = 30.0
    sigma: float = 0.25  # of the logarithm
    slow_share: float = 0.02  # answers that take `slow_ms` more
    slow_ms: float = 150.0

    def draw_s(self, source: random.Random) -> float:
        if not self.median_ms:
            return 0.0
        slow_ms = self.slow_ms if source.random() < self.slow_share else 0.0
        return (self.median_ms * source.lognormvariate(0.0, self.sigma) + slow_ms) / 1000


NONE = Delay(0.0, 0.0, 0.0, 0.0)
EXPRESS = Delay(5.0, slow_ms=25.0)
REGION = Delay()
