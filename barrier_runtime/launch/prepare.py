"""What is done with a plan before it runs, and after it has finished, on Spark as in a local run.

    PreparedJob(plan, options)     compile; describe the job to the coordinator
    prove(store)                   refuse a store that cannot hold a decision log
    resolve_in_doubt(store)        commit what was decided of sinks that the program no longer has
    begin_with_savepoint(store)    make the savepoint that `restore=` names the job's newest checkpoint
    stage(storage_url)             put the rows of staged sources into storage, and compile again with their splits
    batch_functions(store, …)      call the functions of `for_each_batch` for what the job decides, while it runs
    (the job runs)
    unstage(storage_url)           remove those rows, once the job has finished

Blocking; for the driver.
"""

import logging
import shlex
import sys
import time
from dataclasses import replace

from barrier_runtime.connectors.batch_function.caller import MakeFrame
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.savepoints.importing import begin_with_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.batch_functions import BatchFunctions, has_batch_functions
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.launch.patient_listing import patient_listing
from barrier_runtime.launch.removed_sinks import commit_removed_sinks
from barrier_runtime.launch.staged_sources import stage_sources, unstage_sources
from barrier_runtime.launch.steering.restore_preview import check_splits, restored_sources
from barrier_runtime.launch.steering.savepoints import is_savepoint_url
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.probe import prove_once
from barrier_runtime.state.store.urls import shown

log = logging.getLogger("barrier_runtime.launch")


class PreparedJob:
    """A plan on its way to run: `graph` is what slots run, `spec` what is submitted to the coordinator."""

    def __init__(self, plan: Plan, options: JobOptions) -> None:
        self._plan = plan
        self._options = options
        self._list_splits = patient_listing(options)
        self.graph: JobGraph = self._compiled()
        self.spec: JobSpec = job_spec(self.graph, options)

    def prove(self, store: ObjectStore) -> None:
        prove_once(store, Paths(self.spec.job).probe_prefix, time.time_ns() // 1_000_000)

    def resolve_in_doubt(self, store: ObjectStore) -> None:
        commit_removed_sinks(self.graph, store, self._options)

    def begin_with_savepoint(self, store: ObjectStore) -> None:
        """What `restore=` names, if that is a savepoint, becomes the job's newest checkpoint, once."""
        options = self._options
        if is_savepoint_url(options.restore):
            done = begin_with_savepoint(
                store, options.restore, self.spec, options.restore_mode, fits=self._check_splits
            )
            log.info("%s", done)

    def _check_splits(self, store: ObjectStore, manifest: Manifest) -> None:
        sources = [chain.source for chain in self.graph.chains if chain.source is not None]
        check_splits(restored_sources(store, manifest), sources)

    def stage(self, storage_url: str) -> None:
        if stage_sources(self.graph, storage_url, fresh=self._options.restore == "none"):
            self.graph = self._compiled()  # their splits are known only now

    def unstage(self, storage_url: str) -> None:
        unstage_sources(self.graph, storage_url)

    def batch_functions(self, store: ObjectStore, make_frame: MakeFrame) -> BatchFunctions:
        """The functions of `for_each_batch`, to be called while the job runs."""
        return BatchFunctions(self._plan, store, make_frame)

    @property
    def loaded_from(self) -> str:
        """The file and the flow that a command has loaded, "app.py:flow"; else ""."""
        return self._plan.program

    @property
    def has_batch_functions(self) -> bool:
        return has_batch_functions(self._plan)

    def _compiled(self) -> JobGraph:
        options = self._options
        graph = compile_plan(
            self._plan,
            options.parallelism,
            options.max_parallelism,
            mode=options.mode,
            list_splits=self._list_splits,
        )
        return replace(graph, replay=_replay_begins(self._plan, options))


def _replay_begins(plan: Plan, options: JobOptions) -> str:
    """How the command begins that meets a row of this job again; empty: its checkpoints will be gone."""
    if options.checkpoints is None:
        return ""
    program, url = shlex.quote(program_of(plan)), shlex.quote(shown(options.checkpoints))
    return f"barrier-runtime replay {program} --checkpoints {url}"


def program_of(plan: Plan) -> str:
    """The file and the name in it, by which the command line finds the flow; "app.py:flow" where nobody knows."""
    if plan.program:
        return plan.program
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    named = (name for name, value in list(vars(main).items()) if getattr(value, "plan", None) is plan)
    name = next(named, None) if file else None
    return "app.py:flow" if name is None else f"{file}:{name}"
