"""The security tests share the coordinator tests' world: real slots over TCP, and a job description."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # doctor, living_daemon
sys.path.insert(0, str(Path(__file__).parents[1] / "coordinator"))  # coordinator_world, tcp_slot
