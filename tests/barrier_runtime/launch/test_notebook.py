"""A job in a real notebook kernel with real ipywidgets: the display below the cell, and the button's effect."""

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

STARTS = """
import time
from barrier_runtime import CallableSink, Dataflow
flow = Dataflow("clicks")
flow.rate("clicks", 200).sink("seen", CallableSink(lambda batch: None))
job = flow.start_local(parallelism=1, checkpoint_interval=0.05)
while job.status().checkpoints.completed < 2:
    time.sleep(0.01)
job
"""
ENDED = """
import threading, time
job.wait(60)
while any(each.name == "barrier-widget" for each in threading.enumerate()):
    time.sleep(0.01)
print(job.status().outcome)
"""
FAILS = """
flow = Dataflow("broken")
flow.rate("clicks", 2_000).map(lambda row: {"x": 1 // 0}).sink("seen", CallableSink(lambda batch: None))
job = flow.start_local(parallelism=1, restart="none")
job
"""


class Notebook:
    """Replacement for a notebook's page: sends cells, and updates widgets from the kernel's messages of any cell."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._state: dict[str, dict[str, Any]] = {}

    def run(self, code: str) -> list[dict[str, Any]]:
        """Runs a cell and returns the outputs. Raises the cell's error."""
        sent = self._client.execute(code)
        outputs: list[dict[str, Any]] = []
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            kind, content = message["msg_type"], message["content"]
            self._keep(kind, content)
            if message["parent_header"].get("msg_id") != sent:
                continue
            if kind == "error":
                raise AssertionError("\n".join(content["traceback"]))
            if kind in ("stream", "execute_result"):
                outputs.append(content)
            if kind == "status" and content["execution_state"] == "idle":
                return outputs

    def _keep(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "comm_open" or (kind == "comm_msg" and content["data"]["method"] == "update"):
            self._state.setdefault(content["comm_id"], {}).update(content["data"]["state"])

    def shown(self, widget: str) -> dict[str, Any]:
        """The state of a widget, as of the messages until now."""
        self.run("pass")
        return self._state[widget]

    def until(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, f"gave up waiting until {what}"
            time.sleep(0.02)

    def click(self, button: str) -> None:
        content = {"comm_id": button, "data": {"method": "custom", "content": {"event": "click"}}}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", content))


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        yield Notebook(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def widget(outputs: Any) -> str:
    (output,) = outputs
    return str(output["data"]["application/vnd.jupyter.widget-view+json"]["model_id"])


def children(notebook: Notebook, box: str) -> tuple[str, str]:
    figures, button = (name.removeprefix("IPY_MODEL_") for name in notebook.shown(box)["children"])
    return figures, button


@pytest.mark.slow
def test_a_job_in_a_cell_is_a_line_of_live_figures_with_a_button_that_stops_it(notebook: Notebook) -> None:
    figures, button = children(notebook, widget(notebook.run(STARTS)))
    first = notebook.shown(figures)["value"]
    assert "<b>clicks: RUNNING</b>" in first
    assert "<small>rows read</small>" in first
    assert notebook.shown(button)["description"] == "Stop"
    notebook.until("the figures change by themselves", lambda: notebook.shown(figures)["value"] != first)
    assert "<b>clicks: RUNNING</b>" in notebook.shown(figures)["value"]

    notebook.click(button)
    (said,) = notebook.run(ENDED)
    assert said["text"] == "cancelled\n"
    assert "<b>clicks: STOPPED</b>" in notebook.shown(figures)["value"]
    assert notebook.shown(button)["disabled"] is True


@pytest.mark.slow
def test_a_job_that_fails_says_so_in_its_cell(notebook: Notebook) -> None:
    notebook.run("from barrier_runtime import CallableSink, Dataflow")
    figures, button = children(notebook, widget(notebook.run(FAILS)))
    notebook.until("it failed", lambda: "<b>broken: FAILED</b>" in notebook.shown(figures)["value"])
    assert "ZeroDivisionError" in notebook.shown(figures)["value"]
    notebook.until("the button is off", lambda: notebook.shown(button).get("disabled"))


@pytest.mark.slow
def test_a_widget_that_is_closed_is_not_followed_any_more(notebook: Notebook) -> None:
    """For example when a rerun cell closes the output of the last run."""
    notebook.run(STARTS)
    (said,) = notebook.run(
        """
import threading, ipywidgets
from barrier_runtime.launch.display import live_widget
def following():
    return sum(each.name == "barrier-widget" for each in threading.enumerate())
before = following()
box = live_widget(job)
assert following() == before + 1
box.close()
while following() > before:
    time.sleep(0.01)
print(job.status().condition)
job.stop("now")
"""
    )
    assert said["text"] == "RUNNING\n"
