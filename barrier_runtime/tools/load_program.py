"""Process that loads the new program of a running job, ordered by `launch.requests` on standard input."""

import sys
from pathlib import Path
from types import ModuleType

import msgspec

from barrier_runtime.launch.requests import LoadedProgram, LoadOrder, new_program
from barrier_runtime.spark.closure import ship_by_value
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.tools.commands.app import load_flow

_ORDER = msgspec.json.Decoder(LoadOrder)


def main() -> int:
    order = _ORDER.decode(sys.stdin.buffer.read())
    Path(order.answer).write_bytes(msgspec.msgpack.encode(loading(order)))
    return 0


def loading(order: LoadOrder) -> LoadedProgram:
    try:
        flow = load_flow(order.flow)
        for module in modules_beside(Path(flow.plan.program.rpartition(":")[0])):
            ship_by_value(module)  # a worker of the old program would find the old module
        return LoadedProgram(new_program(flow.plan, flow.options, order))
    except BarrierRuntimeError as error:
        return LoadedProgram(None, str(error))


def modules_beside(file: Path) -> list[ModuleType]:
    folder = file.resolve().parent
    found = []
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None or module.__name__ == "__main__":
            continue
        place = Path(path).resolve()
        ours = module.__name__.partition(".")[0] == "barrier_runtime" or "site-packages" in place.parts
        if place.is_relative_to(folder) and not ours:
            found.append(module)
    return found


if __name__ == "__main__":
    sys.exit(main())
