"""Reference pages as Markdown: of every command from the command line itself, of the Python API
from its docstrings, and of the examples from what they said."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxremat
from onnxremat.cli.commands import COMMANDS, load

ROOT = Path(__file__).resolve().parent.parent
SAID = ROOT / "docs" / "commands"  # what the commands of the example said
SECTIONS = ("Args", "Attributes", "Returns", "Raises")
# Public beside the names of the package itself: what a training loop is written with.
FURTHER = (
    "onnxremat.training.data.Arrays", "onnxremat.training.data.Loader",
    "onnxremat.training.schedules.Schedule", "onnxremat.device.machine.Machine",
    "onnxremat.device.machine.Device", "onnxremat.device.machine.Link",
    "onnxremat.execute.executor.Executor", "onnxremat.execute.pipelined.Pipeline",
    "onnxremat.schedule.plan.Plan", "onnxremat.schedule.plan.Provenance",
    "onnxremat.grad.exported.listed.Parameters",
)  # fmt: skip


# ---- commands --------------------------------------------------------------------------------


def command_index() -> str:
    """All commands, a line each."""
    rows = [f"| [`{name}`]({name}.md) | {_cell(text)} |" for name, text in COMMANDS.items()]
    head = "# Commands\n\nMade from the command line itself: `onnxremat COMMAND --help`.\n\n"
    return head + "| command | does |\n|---|---|\n" + "\n".join(rows) + "\n"


def command_page(name: str) -> str:
    """One command: what it does, its arguments and options, and an example that was run."""
    made = load(name)
    help_ = inspect.cleandoc(made.help or "")
    arguments = [p for p in made.params if p.param_type_name == "argument"]
    options = [p for p in made.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join(["onnxremat", name, *map(_metavar, arguments)])
    page = [f"# onnxremat {name}", help_, f"    {usage} [OPTIONS]"]
    if arguments:
        page.append(_rows("argument", ((_metavar(p), p) for p in arguments)))
    if options:
        page.append(
            _rows("option", ((", ".join((*p.opts, *p.secondary_opts)), p) for p in options))
        )
    example = SAID / f"{name}.txt"
    if example.is_file():
        said = "\n".join(f"    {line}".rstrip() for line in example.read_text().splitlines())
        page += ["## Example", "Run by `python tools/command_examples.py`:", said]
    return "\n\n".join(page) + "\n"


def _metavar(parameter: Any) -> str:
    """What an argument is called, in brackets where it may be left out."""
    words = parameter.metavar or parameter.name.upper()
    words += "..." if parameter.nargs == -1 else ""
    return words if parameter.required else f"[{words.strip('[]')}]"


def _rows(head: str, found: Iterator[tuple[str, Any]]) -> str:
    rows = [f"| {head} | is | default |", "|---|---|---|"]
    for names, parameter in found:
        given = parameter.default
        given = "" if given is None or given in (False, "", ()) or callable(given) else f"`{given}`"
        needed = "needed" if parameter.required else given
        rows.append(f"| `{names}` | {_cell(getattr(parameter, 'help', '') or '')} | {needed} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    """Words inside a table: no bars, no line ends, nothing that reads as an element."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


# ---- Python ----------------------------------------------------------------------------------


def public_names() -> dict[str, Any]:
    """Every public object by its name."""
    found = {f"onnxremat.{n}": getattr(onnxremat, n) for n in onnxremat.__all__ if n[0] != "_"}
    for path in FURTHER:
        module, name = path.rsplit(".", 1)
        found[path] = getattr(importlib.import_module(module), name)
    return found


def undocumented() -> list[str]:
    """Public names, and public methods of public classes, without a docstring."""
    missing = []
    for path, found in public_names().items():
        if not inspect.getdoc(found):
            missing.append(path)
        if inspect.isclass(found):
            missing += [
                f"{path}.{name}" for name, one in _methods(found) if not inspect.getdoc(one)
            ]
    return missing


def api_page() -> str:
    """All public names, with signatures and docstrings."""
    page = [
        "# Python",
        "Made from the docstrings. Everything under `onnxremat.` is loaded on first use. What is "
        "promised of it from version to version: [Installing](installing.md#what-stays).",
    ]
    for path, found in public_names().items():
        page += [f"## {path}", _signature(path, found), docstring(found)]
        if inspect.isclass(found):
            for name, one in _methods(found):
                page += [
                    f"### {path.rsplit('.', 1)[-1]}.{name}",
                    _signature(name, one),
                    docstring(one),
                ]
    return "\n\n".join(part for part in page if part) + "\n"


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class has of its own or of a parent of ours."""
    for name, one in inspect.getmembers(found):
        owner = next((c for c in found.__mro__ if name in vars(c)), object)
        ours = owner.__module__.startswith("onnxremat")
        if name[0] != "_" and ours and (callable(one) or isinstance(one, property)):
            yield name, one


def _signature(path: str, found: Any) -> str:
    if isinstance(found, property):
        return ""
    try:
        signature = str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""
    name = path.rsplit(".", 1)[-1]
    plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{signature}")  # annotations
    words = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", plain)
    if len(words) > 90:
        words = re.sub(r", (?=[*\w]+\b ?[:=,)*])", ",\n    ", words).replace("(", "(\n    ", 1)
    return f"```python\n{words}\n```"


def docstring(found: Any) -> str:
    """A docstring as Markdown: sections as lists, double quotes of code as single ones."""
    text = inspect.getdoc(found) or ""
    made: list[str] = []
    section = ""
    for line in text.replace("``", "`").splitlines():
        bare = line.strip()
        if line and not line[0].isspace() and bare.rstrip(":") in SECTIONS and bare[-1] == ":":
            section = bare[:-1]
            made += ["", f"**{section}**", ""]
        elif section and line and not line[0].isspace():
            section = ""
            made += ["", line]
        elif section:
            made.append(_entry(line))
        else:
            made.append(line)
    words = re.sub(
        r":(?:func|class|meth|attr|data|mod):`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", "\n".join(made)
    )
    words = re.sub(r"(\S)::\n", r"\1:\n", words)
    return words.replace("<", "&lt;") if "`" not in words else words


def _entry(line: str) -> str:
    """A line of a section: ``name: words`` begins an item, what is deeper goes on with it."""
    depth = len(line) - len(line.lstrip())
    found = re.match(r"\s{4}([\w*, ]+): (.*)", line)
    if depth == 4 and found:
        return f"- `{found[1]}`: {found[2]}"
    return f"- {line.strip()}" if depth == 4 else f"    {line.strip()}" if line.strip() else ""


# ---- examples and files of the repository ----------------------------------------------------


def examples_page() -> str:
    """What the examples are, and what each said when it was last run at full size."""
    page = [(ROOT / "examples" / "README.md").read_text()]
    for file in sorted((ROOT / "examples" / "output").glob("*.txt")):
        said = "\n".join(f"    {line}".rstrip() for line in file.read_text().splitlines())
        page += [f"## {file.stem}", said]
    return "\n\n".join(page) + "\n"


# Pages of the site that are files of the repository, and where links between them lead.
FILES = {
    "index.md": "README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "test-models.md": "models/README.md",
}
PLACES = {file: page for page, file in FILES.items()} | {"examples/README.md": "examples.md"}


def moved(text: str) -> str:
    """Links of a page of the repository as they are on the site."""

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        path = path.removeprefix("../")
        path = PLACES.get(path, path.removeprefix("docs/"))
        return f"]({path}{'#' if anchor else ''}{anchor})"

    return re.sub(r"\]\(((?!https?:|#)[^)\s]+)\)", link, text)


def pages() -> dict[str, str]:
    """Every page that is made, by its name on the site."""
    made = {page: moved((ROOT / file).read_text()) for page, file in FILES.items()}
    made["examples.md"] = moved(examples_page())
    made["python.md"] = api_page()
    made["commands/index.md"] = command_index()
    return made | {f"commands/{name}.md": command_page(name) for name in COMMANDS}
