"""State of checkpoints and savepoints as Arrow tables, read without the flow."""

from barrier_runtime.state_tables.stored_state import StateTableInfo as StateTableInfo
from barrier_runtime.state_tables.stored_state import StoredState as StoredState
from barrier_runtime.state_tables.stored_state import open_checkpoint as open_checkpoint
