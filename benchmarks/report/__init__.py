"""The report: an HTML file with everything; PNG pictures and a table for the README."""

from pathlib import Path

from benchmarks.report.page import page
from benchmarks.report.pictures import draw_all
from benchmarks.report.table import markdown
from benchmarks.spec import Results


def write_report(results: Results, folder: Path) -> list[Path]:
    """Paths of the written files; a picture without data is left out."""
    pictures = {name: folder / f"{name}.png" for name in draw_all(results, folder)}
    report = folder / "report.html"
    report.write_text(page(results, pictures), encoding="utf-8")
    table = folder / "table.md"
    table.write_text(markdown(results), encoding="utf-8")
    return [report, table, *pictures.values()]
