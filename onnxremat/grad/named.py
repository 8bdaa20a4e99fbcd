"""Losses and optimizers with their settings as one word: ``adamw:weight_decay=0.1,beta2=0.95``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from onnxremat.errors import UsageError

K = TypeVar("K")
YES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
FORMS = {"Sequence": "numbers, as 1/2/0.5", "bool": "true or false", "int": "a whole number",
         "float": "a number"}  # fmt: skip


def by_name(said: str, known: Mapping[str, K], what: str) -> K:
    """What has this name, with the settings that follow it.

    Args:
        said: ``name`` or ``name:setting=value,setting=value``; a list is ``1/2/0.5``.
        known: by name, with default settings.
        what: these are, in one word.

    Raises:
        UsageError: an unknown name or setting, or a value that is none.
    """
    name, colon, rest = said.partition(":")
    if name not in known:
        several = f"{what}es" if what.endswith("s") else f"{what}s"
        raise UsageError(f"unknown {what} '{name}'", hint=f"{several} are {', '.join(known)}")
    if not colon:
        return known[name]
    made: Any = known[name]
    types = {field.name: str(field.type) for field in fields(made)}
    values: dict[str, Any] = {}
    for part in rest.split(","):
        setting, _, value = (word.strip() for word in part.partition("="))
        if setting not in types or setting in values:
            raise UsageError(
                f"{what} '{name}' has no setting '{setting}'"
                + ", or only one of them" * (setting in values),
                hint=f"settings are {', '.join(types)}" if types else f"it is {name} alone",
            )
        values[setting] = _value(types[setting], value, f"{setting} of {what} '{name}'")
    return replace(made, **values)


def _value(kind: str, text: str, where: str) -> Any:
    form = next(form for form in FORMS if form in kind)
    try:
        if form == "Sequence":
            return tuple(float(number) for number in text.split("/"))
        return YES[text.lower()] if form == "bool" else {"int": int, "float": float}[form](text)
    except (KeyError, ValueError):
        raise UsageError(f"{where} is '{text}'", hint=f"give {FORMS[form]}") from None
