"""The docs site has every page once, and its reference has every public name once. `make docs` builds it and checks the links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import polar
import polar.trainer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads `mkdocs.yml` without making the Python object that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def pages(entry: Any) -> Iterator[str]:
    """The pages of an entry of `nav`."""
    match entry:
        case str():
            yield entry
        case list():
            for one in entry:
                yield from pages(one)
        case dict():
            yield from pages(list(entry.values()))


def test_the_site_has_every_page_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    assert sorted(pages(nav)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_home_page_links_every_page_and_says_nothing_twice() -> None:
    text = (DOCS / "index.md").read_text().partition("\n- **Tutorials**")[2]
    links = Counter(re.findall(r"\]\(([\w/]+\.md)\)", text))
    assert set(links) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    # A task's fields are a reference, and also how one is written.
    assert {page for page, count in links.items() if count > 1} == {"task.md"}


def test_the_reference_has_every_public_name_once() -> None:
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    named = Counter(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    public = {f"{package.__name__}.{name}" for package in (polar, polar.trainer) for name in package.__all__}
    # `polar` and `polar.trainer` share one class.
    assert public - named.keys() == {"polar.TrajectoryConsumer"}
    assert set(named.values()) == {1}


def test_every_column_of_a_table_has_a_name() -> None:
    unnamed = re.compile(r"^\|(?:.*\|)? *\|.*\n\|[-:| ]+\|$", re.MULTILINE)
    assert {str(page): found for page in DOCS.rglob("*.md") if (found := unnamed.findall(page.read_text()))} == {}


def test_a_reader_of_the_site_contacts_no_other_host() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert config["theme"]["font"] is False, "fonts would come from Google"
    assert not config.keys() & {"extra_javascript", "extra"}
    assert all((DOCS / sheet).is_file() and "url(" not in (DOCS / sheet).read_text() for sheet in config["extra_css"])
    loads = re.compile(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b[^>]*\bhttps?:")
    assert [str(page) for page in DOCS.rglob("*.md") if loads.search(page.read_text())] == []
