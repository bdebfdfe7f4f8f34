"""Commands for data that jobs have stored; they need no running job."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.tools.commands.app import Application, Redact, Target, app, load_flow

savepoints = Application("List savepoints, look at them, delete them.")
app.add_typer(savepoints, name="savepoints")

state = Application("Read the state in checkpoints and savepoints, without the program.")
app.add_typer(state, name="state")


@savepoints.command("list")
def list_savepoints(
    url: Annotated[str, typer.Argument(help="the folder or URL in whose folders savepoints are")],
) -> None:
    """List the savepoints in the folders right below a folder, the oldest first."""
    from barrier_runtime.tools.savepoints import listing

    print(listing(url))


@savepoints.command("describe")
def describe_savepoint(url: Annotated[str, typer.Argument(help="its folder or URL")]) -> None:
    """Describe a savepoint and check that it is complete. Exits with 1 if files are missing."""
    from barrier_runtime.tools.savepoints import describe

    page, whole = describe(url)
    print(page)
    if not whole:
        raise typer.Exit(1)


@savepoints.command("delete")
def delete_savepoint(
    url: Annotated[str, typer.Argument(help="its folder or URL")],
    yes: Annotated[bool, typer.Option("--yes", help="really")] = False,
) -> None:
    """Delete a savepoint. Jobs that began with it have a copy of their own."""
    from barrier_runtime.tools.savepoints import delete

    print(delete(url, yes))


Stored = Annotated[str, typer.Argument(help="a savepoint, or with --job the folder or URL of checkpoints")]
OfJob = Annotated[str, typer.Option(help="the job whose checkpoints are in the folder")]
Number = Annotated[int | None, typer.Option(help="of a retained checkpoint; default: the newest")]
OfKey = Annotated[list[str] | None, typer.Option(help="column=value of the key; may be repeated")]
StateName = Annotated[str, typer.Argument(help="operator.state, as `state tables` lists it")]


@state.command("tables")
def state_tables(url: Stored, job: OfJob = "", checkpoint: Number = None) -> None:
    """List the states of every operator."""
    from barrier_runtime.tools.state import tables

    print(tables(url, job, checkpoint))


@state.command("show")
def state_show(
    url: Stored,
    name: StateName,
    job: OfJob = "",
    checkpoint: Number = None,
    key: OfKey = None,
    limit: Annotated[int, typer.Option(min=1, help="entries")] = 20,
    redact: Redact = None,
) -> None:
    """Print entries of a state, a line of JSON each.

    For a running job these are the entries of the last checkpoint; its age is printed on stderr. If the whole key is
    given, only the part of that key is read.
    """
    from barrier_runtime.tools.state import show

    page, of = show(url, job, checkpoint, name, key or (), limit, redact or ())
    if page:
        print(page)
    print(of, file=sys.stderr)


@state.command("count")
def state_count(
    url: Stored,
    name: StateName,
    job: OfJob = "",
    checkpoint: Number = None,
    key: OfKey = None,
) -> None:
    """Print how many entries a state has, without reading their values."""
    from barrier_runtime.tools.state import count

    print(count(url, job, checkpoint, name, key or ()))


@state.command("diff")
def state_diff(
    before: Annotated[str, typer.Argument(help="number of a checkpoint of --job, or URL of a savepoint")],
    after: Annotated[str, typer.Argument(help="the same, of a later one")],
    url: Annotated[str, typer.Option("--checkpoints", help="folder or URL of the job's checkpoints")] = "",
    job: OfJob = "",
    name: Annotated[str, typer.Option("--state", help="only this step, or step.state")] = "",
    limit: Annotated[int, typer.Option(min=0, help="entries that are printed; all are counted")] = 100,
    redact: Redact = None,
) -> None:
    """Print entries that differ between two checkpoints or savepoints: inserted, changed, deleted.

    Exits with 1 if there are any.
    """
    from barrier_runtime.tools.state import differences

    numbers = [each for each in (before, after) if each.isdigit()]
    if numbers and not (url and job):
        raise InvalidJob(f"{numbers[0]} is the number of a checkpoint: give --checkpoints and --job as well")
    if not numbers and (url or job):
        raise InvalidJob(
            f"{before} and {after} are no numbers of checkpoints, which --checkpoints and --job are for: give those"
        )
    sides = [(url, job, int(each)) if each.isdigit() else (each, "", None) for each in (before, after)]
    line = ""
    for line in differences(sides[0], sides[1], name, limit, redact or ()):
        print(line)
    if line != "0 inserted, 0 changed, 0 deleted":
        raise typer.Exit(1)


@state.command("export")
def state_export(
    url: Stored,
    name: StateName,
    to: Annotated[Path, typer.Option(help="a new Parquet file")],
    job: OfJob = "",
    checkpoint: Number = None,
) -> None:
    """Write a state to a Parquet file."""
    from barrier_runtime.tools.state import export

    print(export(url, job, checkpoint, name, to))


@app.command()
def fsck(
    url: Annotated[str, typer.Argument(help="folder or URL of checkpoints, as in checkpoints=, or of file sinks")],
    job: Annotated[str | None, typer.Option(help="only this job; default: every job there")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="delete orphans, as the jobs' own sweeps would")] = False,
    min_age: Annotated[float, typer.Option(help="seconds; younger objects are never orphans")] = 600.0,
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
) -> None:
    """Verify logs, manifests and every hash; list orphans with the reason.

    Exits with 0 when clean, 1 with orphans only, 2 with damage, 3 when it could not be checked.
    """
    from barrier_runtime.tools.fsck import fsck as run_fsck

    try:
        code = run_fsck(url, job, delete=delete, min_age_s=min_age, form=form)
    except (BarrierRuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 3
    raise typer.Exit(code)


@app.command()
def compact(
    url: Annotated[str, typer.Argument(help="folder or URL that file sinks write to")],
    job: Annotated[str | None, typer.Option(help="of this job only")] = None,
    sink: Annotated[str | None, typer.Option(help="of this sink only")] = None,
    target: Annotated[int, typer.Option(help="MiB that a large file is to have")] = 128,
    keep: Annotated[float, typer.Option(help="seconds for which files that readers may have listed stay")] = 3_600.0,
) -> None:
    """Merge small files that file sinks have committed into large files, while the job runs.

    Run the command regularly, for example every hour: each run continues the work of the previous run. Readers that use
    the sink's commit log notice nothing; a reader that lists the folder misses rows for a moment, and sees none twice.
    """
    from barrier_runtime.connectors.files.sink.compaction import compact_files

    try:
        done = compact_files(url, job, sink, target_bytes=target << 20, keep_s=keep)
    except (BarrierRuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for (of_job, of_sink), each in sorted(done.items()):
        print(
            f"{of_job}/{of_sink}: {counted(each.merged, 'file')} became {each.made}; "
            f"{counted(each.shown, 'large file')} took the place of "
            f"their small ones in the folder, {each.waiting} will when {keep:g} s have passed"
        )
        for reason in each.skipped:
            print(f"{of_job}/{of_sink}: left as it is: {reason}", file=sys.stderr)


@app.command()
def transactions(
    job: str,
    action: Annotated[str, typer.Argument(help="list, commit or abort")],
    checkpoints: Annotated[str, typer.Option(help="folder or URL of the checkpoints, as in checkpoints=")],
    sink: Annotated[
        list[str] | None, typer.Option(help="a sink of your own: name=file.py:factory; may be repeated")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="setting of a sink: sink.key=value; may be repeated")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="abort: drop decided transactions too; their rows are lost")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="settle although the job seems to run")] = False,
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
) -> None:
    """List or resolve decided, invisible transactions of a stopped job, from its checkpoints alone.

    list changes nothing. commit makes every decided transaction visible. abort drops transactions that were never
    decided, after committing the rest. Passwords come from the environment. Exits with 1 if a transaction could not be
    resolved.
    """
    from barrier_runtime.tools.transactions import transactions as run_transactions

    code = run_transactions(
        job,
        action,
        checkpoints,
        sinks=sink or (),
        settings=setting or (),
        accept_loss=accept_loss,
        force=force,
        form=form,
    )
    raise typer.Exit(code)


From = Annotated[str, typer.Option("--from", help="number of a kept checkpoint, URL of a savepoint, or 0: the start")]
Until = Annotated[str | None, typer.Option(help="number of a later checkpoint, or URL of a savepoint")]
Checkpoints = Annotated[
    str | None, typer.Option(help="folder or URL of the job's checkpoints; default: the flow's own option")
]


@app.command()
def replay(
    target: Target,
    after: From,
    operator: Annotated[str, typer.Option(help="the step to look at")],
    until: Until = None,
    key: Annotated[
        list[str] | None, typer.Option(help="value of the key, or column=value; may be repeated; default: all rows")
    ] = None,
    row: Annotated[
        str | None, typer.Option(help="split:number of one row of a source, for a step in one chain with it")
    ] = None,
    checkpoints: Checkpoints = None,
    stop: Annotated[bool, typer.Option("--pdb", help="stop at each row, in the step's function")] = False,
    redact: Redact = None,
) -> None:
    """Run a flow again between two checkpoints and print how a step processes each row of a key.

    Prints the state before and after each row, and the emitted rows. Runs in this process, without sinks; nothing is
    written to the job's storage. Without --until the replay continues until a function raises or no more rows come.
    Exits with 1 if a function raised.
    """
    from barrier_runtime.tools.replaying import replayed

    flow = load_flow(target)
    code = replayed(flow, operator, key or (), after, until, checkpoints, row=row, stop=stop, redact=redact or ())
    raise typer.Exit(code)


@app.command()
def verify(
    target: Target, after: From, until: Until = None, checkpoints: Checkpoints = None, redact: Redact = None
) -> None:
    """Run a flow again between two checkpoints and compare state and rows with those of the job.

    Runs in this process. Exits with 1 and names the first difference if anything differs: then the flow is not
    deterministic.
    """
    from barrier_runtime.tools.replaying import verified

    page, same = verified(load_flow(target), after, until, checkpoints, redact or ())
    print(page)
    if not same:
        raise typer.Exit(1)
