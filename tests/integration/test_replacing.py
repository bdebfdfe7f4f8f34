"""A job on Spark whose program is replaced while the job runs: cores, tasks, kills, and the output."""

import json
from pathlib import Path

import pytest
from harness import counting_flow, enough, verdict, visible_files
from test_rescaling import KILLS, RATE, check_a_kill_in_the_middle, runs, start, tasks_of

from barrier_runtime.launch.requests import ReplaceFailed
from barrier_runtime.spark.closure import ship_by_value
from barrier_runtime.tools.commands.app import load_flow
from barrier_runtime.tools.load_program import modules_beside
from barrier_runtime.tools.rescaling import replace
from tests.waiting import until

pytestmark = pytest.mark.spark


def test_programs_take_over_from_each_other_and_leave_their_cores(spark, tmp_path):
    out, rows = tmp_path / "out", 30_000
    with start(spark, out, tmp_path, rows) as handle:
        until(lambda: runs(handle), "the first checkpoint completed")
        for parallelism in (2, 1):
            if parallelism == 1:
                handle.rescale(1)
            before = handle.status()
            replaced = handle.replace(counting_flow("rescaled", out, rows, RATE))
            after = handle.status()
            assert after.program != before.program
            assert {each.pid for each in after.slots}.isdisjoint({each.pid for each in before.slots})
            assert len(after.slots) == parallelism
            assert replaced.checkpoint is not None
            until(lambda p=parallelism: tasks_of(spark) == p, "Spark has the other cores back")
        with pytest.raises(ReplaceFailed, match=r"goes on with the program that it had: .*has state of operators"):
            handle.replace(counting_flow("rescaled", out, rows, RATE, operator="another"))
        until(lambda: tasks_of(spark) == 1, "what stood by is gone")
        enough(out)
        status = handle.wait(180).status
    assert verdict(out, rows).right, verdict(out, rows)
    assert [(each.kind, each.state) for each in status.rescales] == [
        ("replace", "done"),
        ("rescale", "done"),
        ("replace", "done"),
        ("replace", "failed"),
    ]
    assert status.generations == 4, "one for each change, and none by trouble"


@pytest.mark.parametrize(("state", "victim"), KILLS[1::2])
def test_a_kill_in_the_middle_leaves_the_old_program_or_the_new_one(spark, tmp_path, victim, state):
    def change(handle, out, rows):
        try:
            handle.replace(counting_flow("rescaled", out, rows, RATE), timeout=120)
        except ReplaceFailed:
            assert handle.status().program == "" or handle.status().outcome

    check_a_kill_in_the_middle(spark, tmp_path, victim, state, change)


APP = """
import sys

import helper

sys.path.insert(0, {here!r})  # the new program is loaded by a process of its own
from harness import NumbersUntilEnough
from barrier_runtime import Dataflow, JsonlSink, count

flow = Dataflow("rescaled")
numbers = flow.source("numbers", NumbersUntilEnough({rate}, {rows}, keys=200, out={out!r}))
counted = numbers.key_by("key").aggregate("count", n=count())
counted.map(lambda row: {{**row, "by": helper.BY}}).sink("out", JsonlSink({out!r}))
"""


def test_a_command_has_the_program_loaded_anew_from_its_own_file(spark, tmp_path):
    out, rows, app = tmp_path / "out", 100_000, tmp_path / "app.py"

    def write(by):
        (tmp_path / "helper.py").write_text(f"BY = {by!r}\n")
        app.write_text(APP.format(here=str(Path(__file__).parent), rate=RATE, rows=rows, out=str(out)))

    write("first")
    target = f"{app}:flow"
    flow = load_flow(target)
    for module in modules_beside(app):
        ship_by_value(module)
    options = {"parallelism": 2, "checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 0.3}
    with flow.start(spark=spark, **options) as handle:
        client = handle._coordinator.client
        until(lambda: runs(handle), "the first checkpoint completed")
        write("second")
        replaced = replace(client, "rescaled", target, 60.0)
        assert replaced.checkpoint
        assert replaced.pause_ms >= 0
        app.write_text("import no_such_module\n")
        with pytest.raises(ReplaceFailed, match="No module named 'no_such_module'"):
            replace(client, "rescaled", target, 60.0)
        with pytest.raises(ReplaceFailed, match="only that file can be loaded anew"):
            replace(client, "rescaled", f"{tmp_path}/other.py:flow", 60.0)
        enough(out)
        status = handle.wait(180).status
    assert status.generations == 2
    assert verdict(out, rows).right, verdict(out, rows)
    by = [json.loads(line) for file in visible_files(out) for line in file.read_text().splitlines()]
    assert {row["by"] for row in by} == {"first", "second"}
    for key in range(200):
        of_key = sorted((row["n"], row["by"]) for row in by if row["key"] == key)
        assert [each for _, each in of_key] == sorted(each for _, each in of_key), "one after the other"
