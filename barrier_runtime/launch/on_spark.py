"""Runs a flow on Spark: session, coordinator, and slots in tasks of a Spark job."""

from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.coordinator_of_job import check_addresses, submitted
from barrier_runtime.launch.display import progress_shown
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.options import JobOptions, shared_store
from barrier_runtime.launch.outcome import JobResult, interruption_told
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.closure import check_travels
from barrier_runtime.spark.session import check_free_core, check_session, make_session
from barrier_runtime.spark.stage import SparkCarrier
from barrier_runtime.spark.task import local_root
from barrier_runtime.state.errors import InvalidJob


def run(plan: Plan, options: JobOptions) -> JobResult:
    """Runs `plan` on Spark until the job ends. Raises the errors of `JobHandle.wait`."""
    with (
        interruption_told(plan.name, goes_on=True),
        start(plan, options) as handle,
        progress_shown(plain=options.verbose) as show,
    ):
        handle.show = show
        return handle.wait()


def start(plan: Plan, options: JobOptions) -> JobHandle:
    if options.checkpoints is None:
        raise InvalidJob("checkpoints= is required on Spark: the folder or URL (file://, s3://) where checkpoints go")
    job = PreparedJob(plan, options)
    check_addresses(options)
    check_travels(job.graph)
    local_root(options.run_id)  # refuses an untrusted folder here, not in the slots
    store = shared_store(options.checkpoints)
    job.prove(store)
    spark, own_session = options.spark, options.spark is None
    if spark is None:
        spark = make_session(job.graph.name, options.master, options.spark_conf, options.checkpoints)
    try:
        check_session(spark, options.parallelism, options.spare_slots)
        if job.has_batch_functions:
            check_free_core(spark, options.parallelism + options.spare_slots)
        coordinator = submitted(job, options, store, spark)
    except BaseException:
        if own_session:
            spark.stop()
        raise
    carrier = SparkCarrier(spark, own_session=own_session)
    return JobHandle(job, options, carrier, coordinator, range(options.parallelism))
