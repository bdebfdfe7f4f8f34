"""CSV files of the real world."""

from pathlib import Path

from barrier_runtime import CollectSink, Dataflow


def read(path: Path, **options: object) -> list[dict[str, object]]:
    """All rows of a CSV file, read by a whole job."""
    flow, out = Dataflow("field"), CollectSink()
    flow.read_csv("in", str(path), **options).sink("out", out)  # type: ignore[arg-type]
    flow.run_local(parallelism=1)
    return list(out.rows())


# Source: our own trial
def test_a_quoted_comma_is_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('a,b\n"1,2",x\n')
    assert read(tmp_path / "in.csv") == [{"a": "1,2", "b": "x"}]
