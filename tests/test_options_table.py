"""The table of options (`coordinator/option_table.py`): files made from the table are current, and all code that takes,
stores, checks or shows an option agrees with the table. A new option needs no change here.
"""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

sys.path.insert(0, str(Path(__file__).parent))  # options_table

from options_table import DOCUMENT, ROOT, TYPES, document, types

from barrier_runtime import Dataflow
from barrier_runtime.coordinator.option_table import DAEMON, GROUPS, OPTIONS, SAME, Option
from barrier_runtime.coordinator.option_types import (
    CheckpointOptions,
    LocalRunOptions,
    OptionValues,
    RestartOptions,
    RunOptions,
)
from barrier_runtime.coordinator.server import daemon
from barrier_runtime.launch.options import JobOptions, effective
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.tools.cli import app
from barrier_runtime.tools.commands.flows import Given, read

EVERYWHERE = {name for name, option in OPTIONS.items() if option.where in ("everywhere", "apart")}
ON_COMMAND_LINE = {name: option for name, option in OPTIONS.items() if option.on_command_line}
NO_FLAGS = {
    "spark": "a live object",
    "run_id": "made for each run: with one that was there before a daemon would not start anything",
}
BOUNDED = [option for option in OPTIONS.values() if option.low is not None]

every_option = pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
every_flag = pytest.mark.parametrize("option", ON_COMMAND_LINE.values(), ids=lambda option: option.flag)
every_bounded = pytest.mark.parametrize("option", BOUNDED, ids=lambda option: option.name)


# ---------------------------------------------------------------- generated files


@pytest.mark.parametrize(("file", "written"), [(TYPES, types), (DOCUMENT, document)], ids=["types", "document"])
def test_what_is_written_from_the_table_is_current(file: Path, written: Any) -> None:
    assert file.read_text(encoding="utf-8") == written(), "run: make tables"


def test_readme_leads_to_the_table() -> None:
    assert "(docs/options.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------- keywords


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (Dataflow, set(OPTIONS)),
        (Dataflow.run, set(OPTIONS)),
        (Dataflow.start, set(OPTIONS)),
        (Dataflow.explain, set(OPTIONS)),
        (Dataflow.run_local, EVERYWHERE),
    ],
    ids=lambda given: getattr(given, "__qualname__", ""),
)
def test_signatures_have_every_option_with_its_type_and_default(method: Any, names: set[str]) -> None:
    """Notebooks complete from signatures, and `help()` shows them."""
    keywords = {
        name: parameter
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and name not in ("processes", "wire", "defaults")  # no options
    }
    assert keywords.keys() == names
    for name, parameter in keywords.items():
        assert (parameter.annotation, parameter.default) == (OPTIONS[name].type, OPTIONS[name].default)


@pytest.mark.parametrize(
    ("method", "keywords"),
    [
        (Dataflow.__init__, "RunOptions"),
        (Dataflow.run, "RunOptions"),
        (Dataflow.start, "RunOptions"),
        (Dataflow.explain, "RunOptions"),
        (Dataflow.run_local, "LocalRunOptions"),
    ],
    ids=lambda given: getattr(given, "__qualname__", ""),
)
def test_type_checkers_and_editors_see_the_options(method: Any, keywords: str) -> None:
    assert inspect.unwrap(method).__annotations__["options"] == f"Unpack[{keywords}]"


def test_the_keywords_and_values_have_the_types_and_defaults_of_the_table() -> None:
    keywords = typing.get_type_hints(RunOptions)
    values = {each.name: each for each in dataclasses.fields(OptionValues)}
    types_of_values = typing.get_type_hints(OptionValues)
    assert keywords.keys() == values.keys() == OPTIONS.keys()
    assert typing.get_type_hints(LocalRunOptions).keys() == EVERYWHERE
    for name, option in OPTIONS.items():
        assert types_of_values[name] == option.type, name
        if not option.made:
            assert values[name].default == option.default, name
        further: Any = {"int": int, "Sequence[str]": Sequence[str], "os.PathLike[str]": type(Path()).__mro__[-2]}
        assert keywords[name] == option.type | further[option.also] if option.also == "int" else True
        assert set(typing.get_args(option.type)) <= set(typing.get_args(keywords[name])), name


@pytest.mark.parametrize(
    ("struct", "group"),
    [(CheckpointOptions, "Checkpoints"), (RestartOptions, "Restarts")],
    ids=["checkpoints", "restarts"],
)
def test_what_is_stored_has_a_field_for_each_option(struct: type[msgspec.Struct], group: str) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    options = {option.field: option for option in GROUPS[group] if option.field}
    assert list(fields) == list(options)
    for name, option in options.items():
        expected = option.stored(option.default) if option.stored_default is SAME else option.stored_default
        assert fields[name].default == expected, name


def test_names_under_which_options_are_stored_stay() -> None:
    """Logs and manifests with these names are read for ever. New names are added; none is removed."""
    assert {
        *("interval_ms", "min_pause_ms", "timeout_ms", "max_concurrent", "tolerable_failures", "mode", "unaligned"),
        *("aligned_timeout_ms", "retained", "on_cancel"),
    } <= set(CheckpointOptions.__struct_fields__)
    assert RestartOptions.__struct_fields__[:9] == (
        *("strategy", "initial_ms", "multiplier", "max_ms", "reset_after_ms", "max_attempts", "jitter", "max_failures"),
        "interval_ms",
    )


# ---------------------------------------------------------------- values


@every_bounded
def test_a_value_out_of_bounds_is_refused_with_name_bounds_and_what_to_give(option: Option) -> None:
    assert option.low is not None
    assert option.high is not None
    for wrong in (option.low - 1, option.high * 2 + 1):
        with pytest.raises(InvalidJob) as error:
            JobOptions(**{option.name: wrong}).check()
        said = str(error.value)
        assert said.startswith(f"{option.name}={wrong}: give ")
        assert f"from {option.low:g} to {option.high:.0f}" in said


@every_option
def test_a_value_of_the_wrong_type_is_refused_with_what_to_give(option: Option) -> None:
    if option.type is Any:
        return
    with pytest.raises(InvalidJob) as error:
        JobOptions.from_keywords({option.name: ["x"]} if option.also != "Sequence[str]" else {option.name: [1]})
    said = str(error.value)
    assert said.startswith(f"{option.name}=")
    assert ": give " in said or ": use " in said
    assert (", or None" in said) is option.optional


@every_option
def test_every_option_is_shown_with_where_its_value_comes_from(option: Option) -> None:
    assert effective(JobOptions(), {})[option.name].endswith("[default]")
    assert effective(JobOptions(), {option.name: "keyword"})[option.name].endswith("[keyword]")
    assert (option.name in effective(JobOptions(), {}, local=True)) is (option.where == "everywhere")


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize("command", ["run", "explain"])
def test_the_command_line_takes_every_option(command: str) -> None:
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    flags = {parameter.name: parameter for parameter in parameters}
    assert flags.keys() - ON_COMMAND_LINE.keys() == {"target", "local"} | (
        {"help", "processes", "defaults"} & flags.keys()
    )
    assert OPTIONS.keys() - flags.keys() == NO_FLAGS.keys()
    for name, option in ON_COMMAND_LINE.items():
        assert {option.flag, *option.flags} <= set(flags[name].opts)
        assert flags[name].envvar == option.variable


@every_flag
def test_the_default_of_a_flag_can_be_written_as_text(option: Option) -> None:
    if option.plain_type is bool:
        text: Any = bool(option.default)
    elif option.made:
        text = []
    else:
        text = "none" if option.default is None else str(option.default)
    value = read(option, option.flag, text)
    if option.default is None:
        assert value in (None, False, "none")
    else:
        assert value == option.default


@every_flag
def test_a_flag_of_spark_is_refused_with_local_and_a_variable_is_left_out(option: Option) -> None:
    flag = Given({option.name: "x"}, {}, {option.name: option.flag})
    variable = Given({}, {option.name: "x"}, {option.name: option.variable})
    assert flag.for_run(local=False) == variable.for_run(local=False) == {option.name: "x"}
    if option.where == "everywhere":
        assert flag.for_run(local=True) == variable.for_run(local=True) == {option.name: "x"}
        return
    assert variable.for_run(local=True) == {}
    with pytest.raises(InvalidJob, match=f"{option.flag} has no meaning in a local run.*or run without --local"):
        flag.for_run(local=True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("parallelism", "two", "--parallelism 'two': give a whole number"),
        ("checkpoint_interval", "1s", "--checkpoint-interval '1s': give a number of seconds"),
        ("restart_attempts", "many", "--restart-attempts 'many': give a whole number, or none"),
        ("restart_jitter", "x", "--restart-jitter 'x': give a number"),
        ("spark_conf", ["a"], "--spark-conf 'a': write key=value"),
    ],
)
def test_text_that_is_no_value_is_refused_with_the_flag_and_what_to_give(name: str, text: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        read(OPTIONS[name], OPTIONS[name].flag, text)


def test_none_is_a_value_where_the_option_has_it() -> None:
    assert read(OPTIONS["restart_attempts"], "--restart-attempts", "none") is None
    assert read(OPTIONS["restore"], "--restore", "none") == "none"
    assert read(OPTIONS["checkpoints"], "--checkpoints", "none") == "none", "a folder may be called so"


def test_the_daemon_takes_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        daemon.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for option in DAEMON:
        assert f" {option.flag} " in told
        assert " ".join(option.help.split())[:60] in told
