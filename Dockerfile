# The package with its connectors and Java, for a coordinator daemon, a driver, or a run without Spark:
#
#     docker build -t barrier-runtime .
#     docker run --rm -it barrier-runtime demo --no-browser
#     docker run --rm -v "$PWD:/work" barrier-runtime run app.py:flow --local --checkpoints checkpoints
#
# Executors need the same package and the same Python: use this image for them, too (spark.kubernetes.container.image), or
# --build-arg EXTRAS=s3 without Spark's and Java for a daemon.
FROM python:3.12-slim AS wheel
COPY . /source
RUN pip wheel --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
ARG EXTRAS=spark,s3,clouds,kafka,postgres,mysql,delta,iceberg,clickhouse,kinesis,rabbitmq,redis,sketches,otel
RUN case ",$EXTRAS," in *,spark,*) apt-get update && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/* ;; esac
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[$EXTRAS]" && useradd --create-home barrier \
    && install --directory --owner barrier /work
USER barrier
WORKDIR /work
ENTRYPOINT ["barrier-runtime"]
