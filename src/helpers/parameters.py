"""The parameters of a notebook: read from its parameters cell, checked by name and type before anything runs.

Papermill only logs an unknown parameter and never checks a type, so the runner does both.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import math
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import remote
from helpers.schema import RooflogError

TYPES = ("str", "int", "float", "bool", "list[str]", "list[int]", "list[float]", "list[bool]")
PATH_MARK = "[path]"
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


class ParameterError(RooflogError):
    """A notebook parameter that does not exist, or a value of the wrong type."""


@dataclass(frozen=True)
class NotebookParameter:
    """One line of the parameters cell."""

    name: str
    type: str
    default: Any
    help: str

    @property
    def is_path(self) -> bool:
        """Tell whether the value is a path (the comment says ``[path]``)."""
        return PATH_MARK in self.help


def read_parameters(source: str, notebook: str) -> dict[str, NotebookParameter]:
    """Read ``name: type = literal  # help`` lines.

    Parameters
    ----------
    source : str
        Source of the parameters cell.
    notebook : str
        Name for messages.

    Returns
    -------
    dict
        Name -> parameter, in order.

    Raises
    ------
    ParameterError
        The cell holds something else than literals of a known type.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ParameterError(f"{notebook}: parameters cell: not Python: line {error.lineno}: {error.msg}") from error
    comments = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, NotebookParameter] = {}
    for statement in tree.body:
        name, value, declared = _target(statement)
        if name is None or value is None:
            raise ParameterError(
                f"{notebook}: line {statement.lineno} of the parameters cell: expected name: type = literal, "
                f"found {ast.unparse(statement)!r}"
            )
        try:
            default = ast.literal_eval(value)
        except ValueError as error:
            raise ParameterError(f"{notebook}: parameter {name}: expected a literal, found an expression") from error
        kind = declared or type(default).__name__
        if kind not in TYPES:
            raise ParameterError(f"{notebook}: parameter {name}: expected a type of {', '.join(TYPES)}, found {kind}")
        found[name] = NotebookParameter(name, kind, default, comments.get(statement.end_lineno or statement.lineno, ""))
    return found


def _target(statement: ast.stmt) -> tuple[str | None, ast.expr | None, str]:
    """Return name, value and declared type of an assignment."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value, ast.unparse(statement.annotation)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value, ""
    return None, None, ""


def check_parameters(
    declared: Mapping[str, NotebookParameter],
    given: Mapping[str, Any] | Iterable[tuple[str, Any]],
    notebook: str,
    *,
    reserved: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Check given values by name and type, and return them typed.

    Parameters
    ----------
    declared : mapping
        From `read_parameters`.
    given : mapping, or pairs of name and value
        Values as Python objects or as text from a command line.
    notebook : str
        Name for messages.
    reserved : mapping, optional
        Parameters that are set another way -> how.

    Returns
    -------
    dict
        Name -> value of the declared type; paths are absolute, relative ones taken from the caller's folder.

    Raises
    ------
    ParameterError
        Unknown name (with the nearest known one), twice the same name, reserved name, or wrong type.
    """
    typed: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, Mapping) else given:
        if name in (reserved or {}):
            raise ParameterError(f"{notebook}: parameter {name} is set by {(reserved or {})[name]}, not by -p")
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            known = ", ".join(key for key in declared if key not in (reserved or {}))
            raise ParameterError(
                f"{notebook}: no parameter {name!r}" + (f"; did you mean {near[0]}?" if near else "")
                + f" It has: {known or 'none'}"
            )
        if name in typed:
            raise ParameterError(f"{notebook}: parameter {name} is given twice")
        typed[name] = convert(declared[name], value, notebook)
    return typed


def convert(parameter: NotebookParameter, value: Any, notebook: str = "") -> Any:
    """Return a value in the parameter's type, paths made absolute; text is read as that type.

    Examples
    --------
    >>> convert(NotebookParameter("levels", "list[int]", [], ""), "1, 4,16")
    [1, 4, 16]
    """
    kind = parameter.type
    if kind.startswith("list["):
        items = _list_items(value)
        converted = None if items is None else [_scalar(kind[5:-1], item) for item in items]
        result = None if converted is None or any(item is None for item in converted) else converted
    else:
        result = _scalar(kind, value)
    if result is None:
        where = f"{notebook}: " if notebook else ""
        raise ParameterError(f"{where}parameter {parameter.name}: expected {_expected(kind)}, found {value!r}")
    if parameter.is_path:
        return [absolute(item) for item in result] if isinstance(result, list) else absolute(result)
    return result


def _expected(kind: str) -> str:
    words = {"int": "int (a whole number)", "float": "float (a finite number)", "bool": "bool (true or false)"}
    if kind.startswith("list["):
        return f"{kind} (a JSON list, or values with commas between)"
    return words.get(kind, kind)


def _list_items(value: Any) -> list[Any] | None:
    """Split a list given as a list, JSON text or comma-separated text; None if it is neither."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        return None
    if value.lstrip().startswith("["):
        try:
            items = json.loads(value)
        except ValueError:
            return None
        return items if isinstance(items, list) else None
    return [item.strip() for item in value.split(",") if item.strip()]


def _scalar(kind: str, value: Any) -> Any:
    """Return the value in a scalar type, or None where it does not fit."""
    if kind == "str":
        return value if isinstance(value, str) else None
    if kind == "bool":
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else None
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = int(value) if kind == "int" and not isinstance(value, float) else float(value)
    except ValueError:
        return None
    if not math.isfinite(number) or (kind == "int" and number != int(number)):
        return None
    return int(number) if kind == "int" else float(number)


def absolute(path: str) -> str:
    """Take a relative path from the caller's folder; nothing, standard input and URLs stay as they are.

    Raises
    ------
    RemoteError
        A URL with credentials in it: a run writes its parameters down.
    """
    if remote.is_url(path):
        remote.refuse_credentials(path)
        return path
    return path if path in ("", "-") else str(Path(path).expanduser().absolute())
