"""State made of DataFrames."""

from barrier_runtime.bootstrap.writing import SavepointWritten as SavepointWritten
from barrier_runtime.bootstrap.writing import write_savepoint as write_savepoint
