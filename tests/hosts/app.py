"""Program of the job: the workload of `make chaos`. `world` sets the environment."""

import os

from tests.integration.chaos import workload

flow = workload.build(os.environ["HOSTS_TARGET"], float(os.environ["HOSTS_RATE"]))
