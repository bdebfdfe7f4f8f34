"""The user's restart options (`restart=` and `restart_…=`): what each strategy takes, as `RestartOptions`.

Flink's strategies. An option that the chosen strategy does not use is refused and not ignored: whoever gave it expects
something of it.
"""

from collections.abc import Set

from barrier_runtime.coordinator.option_table import OPTIONS, RESTARTS
from barrier_runtime.coordinator.option_types import OptionValues
from barrier_runtime.coordinator.options import validated_restart
from barrier_runtime.coordinator.wire.messages import RestartOptions
from barrier_runtime.state.errors import InvalidJob

_FIRST_BACKOFF_S = 0.2  # exponential_delay; its first restart in a row comes at once
_FIXED_DELAY_S = 1.0


def restart_options(options: OptionValues) -> RestartOptions:
    """What goes to the coordinator. Raises `InvalidJob` when two values do not go together."""
    exponential = options.restart == "exponential_delay"
    delay_s = options.restart_delay
    if delay_s is None:
        delay_s = min(_FIRST_BACKOFF_S, options.restart_max_delay) if exponential else _FIXED_DELAY_S
    if exponential and delay_s > options.restart_max_delay:
        raise InvalidJob(
            f"restart_delay={delay_s:g} is above restart_max_delay={options.restart_max_delay:g}: lower the one or "
            "raise the other"
        )
    values = {option.field: option.stored(getattr(options, option.name)) for option in RESTARTS}
    return validated_restart(RestartOptions(**{**values, "initial_ms": round(delay_s * 1000)}))


def refuse_idle(options: OptionValues, given: Set[str]) -> None:
    """Raise `InvalidJob` for an option among those given that the chosen strategy does not use."""
    for name in sorted(given):
        strategies = OPTIONS[name].strategies
        if strategies and options.restart not in strategies:
            raise InvalidJob(
                f"{name}={getattr(options, name)!r} has no meaning with restart={options.restart!r}: leave it out, "
                f"or use restart={' or '.join(map(repr, strategies))}"
            )
