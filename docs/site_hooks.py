"""Pages of the site beside docs/: the README as first page, and the reference, a page per public class.

Links to files of the repository, which the site lacks, become text. `make docs` fails if the search misses a term of
`SEARCHED`, or shows a module path as a title.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import barrier_runtime

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "api.md"
SEARCHED = {
    "late rows": "windows.html",
    "kubernetes": "clusters.html",
    "backfill": "backfill.html",
}  # page of a heading
GROUPS = {  # modules whose public names share a page
    "barrier_runtime.operators.aggregation.functions": "Aggregate functions",
    "barrier_runtime.state.errors": "Errors",
}
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)[^)]*\)")
_LINK_OF_README = re.compile(r"(?<!!)\[([^\]]+)\]\((?!docs/|https?:)[^)]*\)")
_ENTRY = re.compile(r"^::: ([\w.]+)\n(?: +options: (\{.*\})\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A page of the reference: `names`, with the modules, under `title`."""

    title: str
    names: tuple[tuple[str, str], ...]
    options: str = "{}"

    @property
    def path(self) -> str:
        return f"reference/{self.title.replace(' ', '-')}.md"

    @property
    def text(self) -> str:
        level = 1 if len(self.names) == 1 else 2
        options = f"{{heading_level: {level}, {self.options.strip('{}')}}}"
        entries = [f"::: {module}.{name}\n    options: {options}\n" for module, name in self.names]
        return "\n".join([f"---\ntitle: {self.title}\n---\n", *([f"# {self.title}\n"] if level == 2 else []), *entries])

    @property
    def about(self) -> str:
        """The first line of the docstring, or the names of a group."""
        if len(self.names) > 1:
            return ", ".join(f"`{name}`" for _, name in self.names)
        module, name = self.names[0]
        return (inspect.getdoc(getattr(importlib.import_module(module), name)) or "").splitlines()[0]


def entries(path: str, options: str | None) -> Iterator[Entry]:
    """Pages of an entry of the reference: a class, a function, or a module with public names."""
    given = options or "{}"
    public = [name for name, home in barrier_runtime._HOME.items() if home == path]
    if path in GROUPS:
        yield Entry(GROUPS[path], tuple((path, name) for name in public), given)
    elif public:
        yield from (Entry(name, ((path, name),), given) for name in public)
    else:
        module, _, name = path.rpartition(".")
        yield Entry(name, ((module, name),), given)


def reference() -> dict[str, list[Entry]]:
    """Pages by section."""
    _, *sections = (ROOT / "docs" / REFERENCE).read_text(encoding="utf-8").split("\n## ")
    return {
        section.partition("\n")[0]: [page for entry in _ENTRY.findall(section) for page in entries(*entry)]
        for section in sections
    }


def on_config(config: Any) -> Any:
    pages = [{section: [each.path for each in found]} for section, found in reference().items()]
    for tab in config.nav:
        for title, content in tab.items():
            if title == "Reference":
                content[1:1] = pages
    return config


def on_files(files: Any, config: Any) -> Any:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = _LINK_OF_README.sub(r"\1", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    for found in reference().values():
        for each in found:
            files.append(File.generated(config, each.path, content=each.text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri == REFERENCE:

        def linked(match: re.Match[str]) -> str:
            return "".join(f"- [{each.title}]({each.path}): {each.about}\n" for each in entries(*match.groups()))

        markdown = re.sub(r"\n{2,}(?=- )", "\n", _ENTRY.sub(linked, f"{markdown}\n"))
        return re.sub(r"^(## .*)\n(?=- )", r"\1\n\n", markdown, flags=re.MULTILINE)
    return _OUTSIDE.sub(r"\1", markdown)


def on_post_build(config: Any) -> None:
    index = Path(config.site_dir) / "search" / "search_index.json"
    found = [(each["location"], each["title"]) for each in json.loads(index.read_text(encoding="utf-8"))["docs"]]
    paths = [title for place, title in found if "barrier_runtime." in title and place.startswith("reference/")]
    if paths:
        raise PluginError(f"the reference has module paths as titles: {paths[:5]}")
    for term, page in SEARCHED.items():
        if not any(term in title.lower() and place.startswith(page) for place, title in found):
            raise PluginError(f"searching the site for {term!r} finds no heading of {page}")
