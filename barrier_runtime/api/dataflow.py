"""The language of dataflows.

Nothing runs while a flow is written. Sources, stateful steps and sinks have unique names, which address their state,
whatever the order of steps.
"""

import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from barrier_runtime.api.missing_steps import OF_FLOWS, no_step
from barrier_runtime.api.readers import Readers
from barrier_runtime.api.stream import KeyedStream, Stream
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.graph.explain import drawn, name_of
from barrier_runtime.graph.logical import Plan, StepNode, users_line
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.uncopyable import uncopyable
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for Python 3.10; type checkers have it without the package

    from barrier_runtime.coordinator.option_types import LocalRunOptions, RunOptions
    from barrier_runtime.launch.job_handle import JobHandle
    from barrier_runtime.launch.local_handle import LocalJobHandle
    from barrier_runtime.launch.options import JobOptions
    from barrier_runtime.launch.outcome import JobResult


__all__ = ["Dataflow", "KeyedStream", "Stream", "explain_flow"]

F = TypeVar("F", bound=Callable[..., Any])
LOADED_PROGRAM: ContextVar[str] = ContextVar("the file that a command loads at this moment", default="")


def takes_options(where: Literal["apart", "spark"]) -> Callable[[F], F]:
    """Replaces `**options` in a signature by every option, for notebooks and `help()`."""

    def described(function: F) -> F:
        plain = signature(function)
        own = [each for each in plain.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        keywords = [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for option in OPTIONS.values()
            if option.where in ("everywhere", "apart", where)
        ]
        function.__signature__ = plain.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return described


@plain_errors
class Dataflow(Readers):
    """Description of a job, before the job runs.

    `name` is the job's identity in storage: 1 to 64 of `a-z 0-9 -`. `options` are the defaults of the flow's runs."""

    @takes_options("spark")
    def __init__(self, name: str, **options: "Unpack[RunOptions]") -> None:
        self.plan = Plan(name)
        self.options = _checked(options)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, OF_FLOWS)

    @property
    def name(self) -> str:
        """Name of the job: the folder of its checkpoints, and its address in commands and on the page."""
        return self.plan.name

    def __repr__(self) -> str:
        return f"<Dataflow {self.name}: {', '.join(map(name_of, self.plan.nodes)) or 'no steps yet'}>"

    def _repr_svg_(self) -> str:
        return drawn(self.plan)

    @takes_options("spark")
    def explain(self, *, defaults: bool = False, **options: "Unpack[RunOptions]") -> str:
        """Describes chains, edges, parallelism, guarantees and options with their sources, as text.

        `defaults`: options that are not set, too. `restore`: also the effect on stored state; raises `InvalidJob` if
        a start would refuse. Writes nothing."""
        text = explain_flow(self, options, dict.fromkeys(options, "keyword"), defaults=defaults)
        if "restore" not in options:
            return text
        page, starts = preview_of_restore(self, options)
        if not starts:
            raise InvalidJob(f"a start would be refused\n{page.rstrip()}")
        return f"{text}\n{page}"

    @takes_options("spark")
    def run(self, **options: "Unpack[RunOptions]") -> "JobResult":
        """Runs on Spark until the job ends. docs/options.md describes the options."""
        from barrier_runtime.launch.on_spark import run

        return run(self.plan, self._chosen(options))

    @takes_options("spark")
    def start(self, **options: "Unpack[RunOptions]") -> "JobHandle":
        """Starts on Spark and returns at once. Options are those of `run`."""
        from barrier_runtime.launch.on_spark import start

        return start(self.plan, self._chosen(options))

    @takes_options("apart")
    def run_local(
        self, *, processes: int | None = None, wire: bool | None = None, **options: "Unpack[LocalRunOptions]"
    ) -> "JobResult":
        """Runs on this machine, without Spark, until the job ends.

        Options are those of `run` that need no Spark. With `processes=n` each of n slots has its own process,
        `parallelism` is n by default, and `barrier-runtime slot` starts slots beyond n. `wire`: for tests, passes rows
        and messages as bytes, under a cluster's rules and limits.
        """
        if processes is not None:
            from barrier_runtime.launch import processes as in_processes

            return in_processes.run(self.plan, self._chosen_for(processes, options), processes)
        from barrier_runtime.launch.local import run_local

        return run_local(self.plan, self._chosen(options, local=True), wire=wire)

    @overload
    def start_local(self, *, processes: None = None, **options: "Unpack[LocalRunOptions]") -> "LocalJobHandle": ...

    @overload
    def start_local(self, *, processes: int, **options: "Unpack[LocalRunOptions]") -> "JobHandle": ...

    @takes_options("apart")
    def start_local(
        self, *, processes: int | None = None, **options: "Unpack[LocalRunOptions]"
    ) -> "LocalJobHandle | JobHandle":
        """Runs on this machine beside the program, and returns at once. Arguments are those of `run_local`.

        >>> job = flow.start_local(checkpoints="checkpoints")
        >>> job.status().records
        >>> job.stop()
        >>> job.wait()
        """
        if processes is not None:
            from barrier_runtime.launch import processes as in_processes

            return in_processes.start(self.plan, self._chosen_for(processes, options), processes)
        from barrier_runtime.launch.local_handle import LocalJobHandle

        return LocalJobHandle(self.plan, self._chosen(options, local=True))

    def _chosen_for(self, processes: int, options: Mapping[str, object]) -> "JobOptions":
        from barrier_runtime.launch.options import JobOptions

        self._refuse_while_loaded()
        return JobOptions.for_local_run(options, self.options, processes=processes)

    def _chosen(self, options: Mapping[str, object], *, local: bool = False) -> "JobOptions":
        """Raises `InvalidJob` while a command loads the program."""
        from barrier_runtime.launch.options import JobOptions

        self._refuse_while_loaded()
        return JobOptions.of_run(options, self.options, local=local)

    def _refuse_while_loaded(self) -> None:
        program = LOADED_PROGRAM.get()
        if program:
            raise InvalidJob(
                f"{program} runs the flow {self.name!r} when it is loaded, and would run it a second time: put what "
                'runs it below `if __name__ == "__main__":`'
            )


def _tell_what_stays_here(plan: Plan) -> None:
    for node in plan.nodes:
        if isinstance(node, StepNode) and node.is_sink:
            continue
        found = uncopyable(node.make if isinstance(node, StepNode) else node.source)
        if found:
            warnings.warn(
                f"step {name_of(node)!r}: its function refers to {found}, that cannot be copied: run_local() without "
                "processes= needs no copy, but on Spark the flow is refused: make that inside the function, or in "
                "open()",
                stacklevel=users_line(),
            )


def _checked(options: "RunOptions") -> "RunOptions":
    if options:
        from barrier_runtime.launch.options import typed

        typed(options)
    return options


def explain_flow(
    flow: Dataflow,
    options: Mapping[str, object],
    sources: Mapping[str, str],
    *,
    local: bool = False,
    defaults: bool = False,
) -> str:
    """Text of `Dataflow.explain`. `sources`: where each value of `options` was set."""
    from barrier_runtime.graph.compiler import compile_plan
    from barrier_runtime.graph.explain import explain_graph
    from barrier_runtime.launch.options import JobOptions, effective

    if not local:
        _tell_what_stays_here(flow.plan)
    chosen = JobOptions.of_run(options, flow.options, local=local)
    graph = compile_plan(flow.plan, chosen.parallelism, chosen.max_parallelism, mode=chosen.mode)
    places = {**dict.fromkeys(flow.options, "Dataflow(…)"), **sources}
    settings = effective(chosen, places, local=local)
    shown = settings if defaults else {name: said for name, said in settings.items() if name in places}
    return explain_graph(graph, shown, chosen, left_out=len(settings) - len(shown))


def preview_of_restore(flow: Dataflow, options: Mapping[str, object], *, local: bool = False) -> tuple[str, bool]:
    """Text about the state that a start with `options` would restore, and whether it would start."""
    from barrier_runtime.graph.compiler import compile_plan
    from barrier_runtime.launch.options import JobOptions, job_spec
    from barrier_runtime.launch.prepare import restore_preview

    chosen = JobOptions.of_run(options, flow.options, local=local)
    graph = compile_plan(flow.plan, chosen.parallelism, chosen.max_parallelism, mode=chosen.mode)
    sources = [chain.source for chain in graph.chains if chain.source is not None]
    return restore_preview(job_spec(graph, chosen), chosen, sources)
