"""The user's restart options (`restart=` and `restart_…=`): what each strategy takes, checked, as `RestartOptions`.

Flink's strategies. An option that the chosen strategy does not use is refused and not ignored: whoever gave it expects
something of it.
"""

from typing import TYPE_CHECKING

from coordinator.messages import RestartOptions
from coordinator.options import RESTART_BOUNDS, RESTART_USES, validated_restart
from state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.options import JobOptions

_TIMES = {
    "restart_delay": "initial_ms",
    "restart_max_delay": "max_ms",
    "restart_reset_after": "reset_after_ms",
    "restart_interval": "interval_ms",
}
_FIELDS = {  # option -> field of `RestartOptions`
    **_TIMES,
    "restart_attempts": "max_attempts",
    "restart_multiplier": "multiplier",
    "restart_jitter": "jitter",
    "restart_failures": "max_failures",
}
_FIRST_BACKOFF_S = 0.2  # exponential_delay; its first restart in a row comes at once
_FIXED_DELAY_S = 1.0


def restart_options(options: "JobOptions") -> RestartOptions:
    """What goes to the coordinator. Raises `InvalidJob` for the first value that cannot be right."""
    for name, field in _FIELDS.items():
        _check_bounds(name, field, getattr(options, name))
    exponential = options.restart == "exponential_delay"
    delay_s = options.restart_delay
    if delay_s is None:
        delay_s = min(_FIRST_BACKOFF_S, options.restart_max_delay) if exponential else _FIXED_DELAY_S
    if exponential and delay_s > options.restart_max_delay:
        raise InvalidJob(
            f"restart_delay={delay_s:g} is above restart_max_delay={options.restart_max_delay:g}: lower the one or "
            "raise the other"
        )
    return validated_restart(
        RestartOptions(
            strategy=options.restart,
            initial_ms=round(delay_s * 1000),
            multiplier=options.restart_multiplier,
            max_ms=round(options.restart_max_delay * 1000),
            reset_after_ms=round(options.restart_reset_after * 1000),
            max_attempts=options.restart_attempts,
            jitter=options.restart_jitter,
            max_failures=options.restart_failures,
            interval_ms=round(options.restart_interval * 1000),
        )
    )


def refuse_idle(options: "JobOptions", given: set[str]) -> None:
    """Raise `InvalidJob` for an option among those given that the chosen strategy does not use."""
    idle = sorted(name for name in given & _FIELDS.keys() if _FIELDS[name] not in RESTART_USES[options.restart])
    if idle:
        others = [strategy for strategy, fields in RESTART_USES.items() if _FIELDS[idle[0]] in fields]
        raise InvalidJob(
            f"{idle[0]}={getattr(options, idle[0])!r} has no meaning with restart={options.restart!r}: leave it out, "
            f"or use restart={' or '.join(map(repr, others))}"
        )


def _check_bounds(name: str, field: str, value: float | None) -> None:
    bound = RESTART_BOUNDS[field]
    factor = 1000 if name in _TIMES else 1
    if value is None or bound.low <= value * factor <= bound.high:
        return
    if name == "restart_attempts":
        raise InvalidJob(f"{name}={value}: give 0 or more, or None for no limit")
    if name in _TIMES:
        raise InvalidJob(f"{name}={value}: give seconds from {bound.low / 1000:g} to {bound.high / 1000:.0f}")
    raise InvalidJob(f"{name}={value}: give a number from {bound.low} to {bound.high}")
