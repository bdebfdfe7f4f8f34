"""Commands that run a flow again between two checkpoints: `replay` and `verify`."""

from typing import Annotated

import typer

from barrier_runtime.tools.commands.app import Redact, Target, app, load_flow

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
