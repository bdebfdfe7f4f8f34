"""A small sample that comes with the package, for first steps: paths of files, ready for `read_csv` and the like.

`READINGS`: response times of four sensors over ten minutes, a CSV of 2,400 rows in the order of their times, with the
columns `sensor` (text), `at` (UTC) and `ms` (milliseconds). Sensor "door" is slow from the third minute to the sixth.
"""

import os

READINGS = os.path.join(os.path.dirname(__file__), "readings.csv")
