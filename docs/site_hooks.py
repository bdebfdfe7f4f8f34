"""What the site's pages have beside docs/: the README as its first page, and no links to files of the repository, which
the site does not have: their text stays."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)[^)]*\)")
_LINK_OF_README = re.compile(r"(?<!!)\[([^\]]+)\]\((?!docs/|https?:)[^)]*\)")


def on_files(files: Any, config: Any) -> Any:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = _LINK_OF_README.sub(r"\1", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", markdown)
