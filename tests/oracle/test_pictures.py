"""The pictures of docs/windows.md and docs/joins.md show the current output of the operators."""

import pytest

from tests.window_pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_the_operators_give(name: str) -> None:
    assert (FOLDER / name).read_text() == PICTURES[name](), "write them anew: make tables"
    assert f"images/{name}" in (FOLDER.parent / name.replace(".svg", ".md")).read_text()
