"""State made of DataFrames: savepoints that a job begins with, and edits of savepoints."""

from barrier_runtime.bootstrap.writing import SavepointWritten as SavepointWritten
from barrier_runtime.bootstrap.writing import write_savepoint as write_savepoint
