"""Load the object that `module:attribute` names on the command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from postbus.cli._exits import FAILED, CommandError, usage_error
from postbus.errors import PostbusError

T = TypeVar("T")


def load(target: str, kind: type[T], *, default: str, usage: str, example: str) -> T:
    """Load an object of a module. The module is looked for in the current directory, too.

    `default` is the name of the object if none is given. Remedies show the command `usage` and the code `example`.
    """
    module_name, _, attribute = target.partition(":")
    attribute = attribute or default
    parts = f"{module_name}.{attribute}".split(".")
    if module_name.endswith(".py") or not all(part.isidentifier() for part in parts):
        suggestion = module_name.removesuffix(".py").replace(os.sep, ".").strip(".") or "shop"
        raise usage_error(
            f"{target!r} is not module:{default}", remedy=f"name a module: {usage} {suggestion}:{default}"
        )
    module = _import(module_name)
    remedy = _suggestion(module, kind, default, example)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise usage_error(f"{module_name} has no {attribute!r}", remedy=remedy)
        found = getattr(found, part)
    if not isinstance(found, kind):
        told = f"{module_name}:{attribute} is not a {kind.__name__} but of type {type(found).__name__}"
        raise usage_error(told, remedy=remedy)
    return found


def _suggestion(module: ModuleType, kind: type[Any], default: str, example: str) -> str:
    named = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, kind)]
    return f"name the {default}: {' or '.join(named)}" if named else f"give the module a {default}: {example}"


def _import(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise usage_error(
                f"there is no module {error.name!r}",
                remedy=f"run the command in the folder that has it ({Path.cwd()} has not), or set PYTHONPATH",
            ) from error
        raise _import_failed(name, error) from error
    except PostbusError:
        raise
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> CommandError:
    last_line = traceback.format_exception_only(error)[-1].strip()
    return CommandError(
        f"importing {name} failed: {last_line}",
        remedy=f"see {_where(error)}",
        code="import",
        exit_code=FAILED,
    )


def _where(error: BaseException) -> str:
    """The line of code that failed: the innermost one below the current directory, else the innermost one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__)
    ]
    here = f"{Path.cwd()}{os.sep}"
    own = [one for one in frames if one.filename.startswith(here) and "site-packages" not in one.filename]
    place = (own or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{place.filename}, line {place.lineno}"
