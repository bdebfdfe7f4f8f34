"""Plans the strikes at a job and its server, drawn from a seed alone. Pure."""

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["slot", "coordinator", "driver", "program", "server kill", "server stop"]  # program: all its processes


@dataclass(frozen=True)
class Action:
    """A strike, as soon as the job progresses; `then` is a second strike that does not wait for progress."""

    kind: Kind
    gap_s: float  # from the moment the job got on
    hold_s: float = 0.0  # how long the server stays away
    then: Kind | None = None
    then_gap_s: float = 0.0


def plan(seed: int, kills: int, servers: int, outage_s: float) -> list[Action]:
    """Strikes, `then` included, add up to at least `kills`.

    Every kind occurs, with 20 kills twice or more; slots and coordinators always occur. The last strike is at the
    program: the start after this strike also ends the run, so the strike costs no extra start.

    Each of the `servers` is killed and stopped. One outage lasts `outage_s`, and half of the outages contain another
    strike.
    """
    draw = random.Random(seed)
    programs = max(1, kills // 10)
    firsts: list[Kind] = ["program"] * (programs - 1) + ["coordinator"] * max(2, kills // 5)
    firsts += ["server kill", "server stop"] * max(servers, kills // 10)
    seconds = max(1, kills // 7) + 2
    firsts += ["slot"] * max(2, kills - seconds - len(firsts) - 1)
    draw.shuffle(firsts)
    outages = [at for at, kind in enumerate(firsts) if kind.startswith("server")]
    others = [at for at in range(len(firsts)) if at not in outages]
    longest = draw.choice(outages)
    doubled = set(draw.sample(outages, len(outages) // 2))
    doubled |= set(draw.sample(others, max(0, seconds - len(doubled))))
    actions = []
    for at, kind in enumerate(firsts):
        hold_s = 0.0
        if at in outages:
            hold_s = outage_s if at == longest else draw.uniform(0.1, 1.5)
        seconds_at: list[Kind] = ["slot", "coordinator", "program"] if at in outages else ["slot", "coordinator"]
        then: Kind | None = draw.choice(seconds_at) if at in doubled else None
        actions.append(Action(kind, draw.uniform(0.0, 0.4), hold_s, then, draw.uniform(0.0, min(hold_s, 1.0) or 0.8)))
    return [*actions, Action("program", draw.uniform(0.0, 0.4))]
