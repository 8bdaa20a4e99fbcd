"""Files and options that pages name are there; the pages that are made hold what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from onnxremat.cli.commands import COMMANDS, load
from tests.conftest import ROOT
from tools import docs_reference
from tools.command_examples import EXAMPLES

NAME = re.compile(r"`([\w./-]+?\.(?:py|md|toml))(?:::\w+)?`")
FOLDERS = ("onnxremat", "tests", "tools", "models", "docs", "examples", ".github")


def files() -> list[str]:
    """Every file of the project, as ``/onnxremat/units.py``."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *ROOT.glob("*.*"))]


def test_files_named_are_there() -> None:
    """A name may leave out folders in front. Pages for users name files of others, too, but none in
    a folder."""
    known = files()
    for page in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")):
        names = set(NAME.findall(page.read_text()))
        if page.name not in ("glossary.md", "CONTRIBUTING.md", "architecture.md"):
            names = {name for name in names if "/" in name}
        gone = {name for name in names if not any(path.endswith(f"/{name}") for path in known)}
        assert not gone, page


def test_every_public_name_has_a_docstring() -> None:
    assert docs_reference.undocumented() == []


def test_python_page_has_every_name_and_its_arguments() -> None:
    page = docs_reference.api_page()
    for path in docs_reference.public_names():
        assert f"## {path}\n" in page
    assert 'objective: str = "auto"' in page.replace("'", '"')
    assert "- `budget`: `2GiB`" in page
    assert "``" not in page.replace("```", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_its_options(name: str) -> None:
    page = docs_reference.command_page(name)
    assert page.startswith(f"# onnxremat {name}\n")
    for parameter in load(name).params:
        if parameter.name != "help" and parameter.param_type_name == "option":
            assert parameter.opts[0] in page


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_an_example_that_was_run(name: str) -> None:
    said = (docs_reference.SAID / f"{name}.txt").read_text()
    assert f"\n$ onnxremat {EXAMPLES[name]}\n" in said
    assert said in docs_reference.command_page(name).replace("\n    ", "\n") + "\n"


def commands_of(text: str) -> list[list[str]]:
    """Words of every line of a page that runs onnxremat."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(r"^ *(?:> )?\$ (?:\w+=\S+ )*onnxremat (.*)", joined, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_commands_on_pages_have_the_options_that_there_are(page: Path) -> None:
    for name, *words in commands_of(page.read_text()):
        if name not in COMMANDS:
            assert name.startswith("--"), name
            continue
        end = next((k for k, word in enumerate(words) if word in (">", "|", "&&")), len(words))
        words = words[:end]
        load(name).make_context(name, words)  # raises on what there is not


def test_links_lead_to_pages_of_the_site() -> None:
    moved = docs_reference.moved
    assert moved("[a](docs/planner.md#x) [b](CHANGELOG.md)") == "[a](planner.md#x) [b](changes.md)"
    assert moved("[c](../CONTRIBUTING.md) [d](https://e.org/f)") == (
        "[c](contributing.md) [d](https://e.org/f)"
    )


def test_the_contents_name_every_page() -> None:
    """All but the pages of commands, which are added when the site is made."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"examples.md", "python.md", *docs_reference.FILES}
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} | made


def test_the_version_is_said_in_one_place() -> None:
    from onnxremat.versions import __version__

    files = [ROOT / "pyproject.toml", *(ROOT / "onnxremat").rglob("*.py")]
    said = [path.name for path in files if f'"{__version__}"' in path.read_text()]
    assert said == ["versions.py"]
