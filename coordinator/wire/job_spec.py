"""Job as submitted by a driver and stored in the log. Times are milliseconds."""

from typing import Literal, TypeAlias

import msgspec

from barrier_runtime.coordinator.option_types import CheckpointOptions, RestartOptions
from barrier_runtime.state.snapshots.snapshot import StateDescription

STABLE_KIND = "stable"  # steps that release rows after a decision


class ChainSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chain: int
    operators: tuple[str, ...]
    stateful: tuple[str, ...] = ()  # snapshots that a restore must assign
    sinks: tuple[str, ...] = ()  # operators that commit
    global_sinks: tuple[str, ...] = ()
    is_source: bool = False
    definitions: dict[str, str] = {}  # operator -> definition of state, see `state.snapshots.snapshot.DEFINITION`
    keys: dict[str, str] = {}  # operator -> typed columns of keys
    states: dict[str, dict[str, StateDescription]] = {}  # operator -> declared state -> description
    inputs: tuple[int, ...] = ()  # chains that send rows here; for people
    kinds: dict[str, str] = {}  # operator -> kind of step, see `state.snapshots.snapshot.KIND`
    targets: dict[str, str] = {}  # sink -> target
    columns: dict[str, dict[str, str]] = {}  # operator -> column that the state depends on -> type
    commit_every_ms: dict[str, int] = {}


OptionValue: TypeAlias = str | int | float | bool | None


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: str
    run_id: str  # of a run of the user's program; another run fences this run
    submitter: str  # "user@host pid 123"
    parallelism: int
    max_parallelism: int
    chains: tuple[ChainSpec, ...]
    checkpoints: CheckpointOptions = CheckpointOptions()
    restore: str = "latest"  # "latest", "none" or a checkpoint id
    allow_replay: bool = False  # restore a checkpoint older than the last
    allow_non_restored: bool = False  # drop state whose operator is gone
    allow_drained: bool = False  # continue after input was ended early
    slot_timeout_ms: int = 10_000  # silence of a lost slot
    resource_wait_timeout_ms: int = msgspec.field(default=60_000, name="gang_timeout_ms")  # for all slots to register
    resume_timeout_ms: int = 3_000  # wait of a restarted coordinator for running slots
    reconnect_grace_ms: int = 500  # for a slot with a broken connection to return
    restart: RestartOptions = RestartOptions()
    progress_timeout_ms: int = 0  # until missing progress is reported; 0: see `options`
    store_write_price: float = 5.0  # US dollars for a million requests
    store_read_price: float = 0.4
    program: str = ""  # "": the first program, else id of the request to replace
    fingerprint: str = ""  # of the program's code and structure; "": unknown
    outdated: tuple[str, ...] = ()  # fingerprints of replaced programs, which are refused
    allow_outdated: bool = False
    at_least: int | None = None  # fewest slots that suffice, if others stay away; None: the job waits for all
    degrade_after_ms: int = 60_000  # until the job continues with fewer slots
    full_parallelism: int = 0  # slots to which the job returns; 0: `parallelism`
    narrow_because: str = ""  # slots that stayed away
    carrier: Literal["spark", "processes"] = "spark"  # runs the slots, replaces dead slots
    spare_slots: int = 0
    preflight_ms: int = 0  # before the first FENCE: for the slots to register and to be probed
    slot_options: dict[str, OptionValue] | msgspec.UnsetType = msgspec.UNSET  # for slots of `barrier-runtime slot`
