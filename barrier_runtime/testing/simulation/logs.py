"""Logs of simulated runs."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def silent() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("barrier_runtime", "coordinator")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
