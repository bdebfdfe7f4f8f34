"""Paths of sample files, ready for `read_csv`.

`READINGS`: response times of four sensors over ten minutes, a CSV of 2,400 rows in order of time, with the columns
`sensor` (text), `at` (UTC) and `ms` (milliseconds). Sensor "door" is slow from the third minute to the sixth.
"""

import os

READINGS = os.path.join(os.path.dirname(__file__), "readings.csv")
