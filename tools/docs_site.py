"""What MkDocs asks of us: pages that are made, links of the repository as links of the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnxremat.cli.commands import COMMANDS
from tools.docs_reference import moved, pages


def on_config(config: Any) -> Any:
    """Every command has its place in the contents."""
    for entry in config["nav"]:
        if "Commands" in entry:
            entry["Commands"] = ["commands/index.md", *(f"commands/{name}.md" for name in COMMANDS)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made; outputs of commands are parts of these, no files of the site."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    for file in [f for f in files if f.src_uri.endswith(".txt")]:
        files.remove(file)
    return files


def on_post_page(output: str, **_: Any) -> str:
    """The theme would have the search fetch a script from elsewhere where there is no server."""
    return output.replace('<script src="https://unpkg.com/iframe-worker/shim"></script>', "")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same on the page for what is not there."""
    return on_post_page(output_content)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to where their files are on the site."""
    return markdown if page.file.generated_by else moved(markdown)
