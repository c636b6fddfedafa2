"""Encoding of the function call that :func:`rdzv.launch` sends to its workers.

``_entry`` decodes the call in the worker. The bytes name the function. With ``start="pickle"`` they contain the code
of a function that cannot be imported by name. Arguments are pickled.
"""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from io import BytesIO
from types import FunctionType

from rdzv import _entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any


class Call:
    """A function with its arguments, encoded for the workers."""

    __slots__ = ("content", "title")

    def __init__(self, function: object, args: object, start: str, folder: str) -> None:
        if start not in ("import", "pickle"):
            raise ValueError(f"start is {start!r}: it must be 'import' or 'pickle'")
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"args must be a tuple, not {type(args).__name__}; for one argument write (argument,)")
        if isinstance(function, str):
            function = _function_of_text(function)
        if not callable(function):
            raise TypeError(f"fn must be a function, 'module:function' or a command as a list, not {function!r}")
        name = _name_of(function)
        self.title = getattr(function, "__qualname__", None) or type(function).__qualname__
        whole, pickler = (function, tuple(args)), "pickle"
        main = None
        if start == "import":
            if name is None:
                raise ValueError(
                    f"{self.title} cannot be imported by name in a worker ({_reason(function)}):"
                    " define it at the top level of a module, or pass start='pickle'"
                )
            pickled = _pickled(tuple(args), pickle.Pickler, self.title) if args else None
            if name[0] == "__main__" or pickled is not None and b"__main__" in pickled:
                main = _main_of_this_process()
                if main is None:
                    raise ValueError(
                        f"the call of {self.title} needs __main__, which is not a file that a worker can run: pass"
                        " start='pickle'"
                    )
        elif name is not None and name[0] != "__main__" and not args:
            pickled = None
        else:
            try:
                import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

                pickler, name = "cloudpickle", None
                pickled = _pickled(whole, cloudpickle.CloudPickler, self.title)
            except ImportError:
                name = None
                pickled = _pickled(whole, _FunctionPickler, self.title)
        self.content = marshal.dumps(
            {
                "folder": folder,
                "path": [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path],
                "arguments": list(sys.argv) if hasattr(sys, "argv") else [],
                "main": main,
                "name": name,
                "pickled": pickled,
                "pickler": pickler,
            }
        )


class Values(pickle.Unpickler):
    """Unpickler of the values and exceptions that workers wrote.

    The caller's main file has the name ``_entry.MAIN`` in a worker; it becomes ``__main__`` here.
    """

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == _entry.MAIN else module, name)


def _function_of_text(text: str) -> object:
    module, colon, qualified = text.partition(":")
    if not colon or not module or not qualified:
        raise ValueError(f"fn is {text!r}: write it as 'module:function', or a command as a list")
    try:
        found = _entry.module_by_name(module)
    except ImportError as error:
        raise ValueError(f"fn is {text!r}: {error}") from error
    for part in qualified.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"fn is {text!r}: module {module} has no {qualified}") from None
    return found


def _name_of(function: object) -> tuple[str, str] | None:
    """Module and qualified name by which a worker finds a function, or None."""
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualified, str):
        return None
    if module == _entry.MAIN:
        # This process is itself a worker: `MAIN` is its name for the main file of its caller.
        module = "__main__"
    found = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return (module, qualified) if found is function and _can_be_imported(module) else None


def _can_be_imported(module: str) -> bool:
    """True if a worker can import this module by its name."""
    if module == "__main__":
        return True
    loaded = sys.modules.get(module)
    package, _, _ = module.partition(".")
    if package != module:
        return loaded is not None and _can_be_imported(package)
    # The spec of a loaded module tells only how this process found it. Searching again tells
    # whether a worker finds the same file.
    origin = getattr(getattr(loaded, "__spec__", None), "origin", None)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        found = find(module, None) if find is not None else None
        if found is not None:
            return origin is None or found.origin == origin
    return False


def _reason(function: object) -> str:
    qualified, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if qualified is None:
        return f"a {type(function).__qualname__} has no name"
    if "<lambda>" in qualified:
        return "it is a lambda"
    if "<locals>" in qualified:
        return "it is local to another function"
    return f"module {module} does not have it under that name, or is not on sys.path"


def _main_of_this_process() -> tuple[str | None, str | None] | None:
    """Module name, or path, with which a worker runs the main file.

    One of the two is None. The result is None if there is no file.
    """
    module = sys.modules["__main__"]
    if _entry.main_is_loading:
        raise RuntimeError(
            "launch was called while the main file was loaded in a worker: put the call under"
            ' `if __name__ == "__main__":`, or move the function to a separate module'
        )
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return (spec.name, None)
    path = getattr(module, "__file__", None)
    if path is None or not os.path.exists(path):
        return None
    return (None, os.path.abspath(path))


def _pickled(whole: tuple[object, ...], pickler: Callable[..., Any], title: str) -> bytes:
    file = BytesIO()
    try:
        pickler(file, protocol=5).dump(whole)
    except Exception as error:
        raise TypeError(f"the call of {title} cannot be sent to workers: {_path_to(whole)}{error}") from error
    return file.getvalue()


def _path_to(whole: tuple[object, ...]) -> str:
    """Location of the argument that cannot be pickled, or an empty text.

    The form is ``args[1]['loader']: ``, as the beginning of a message.
    """

    def search(value: object, path: str, depth: int) -> str | None:
        try:
            pickle.dumps(value)
            return None
        except Exception:
            if isinstance(value, dict) and depth:
                parts = [(part, f"{path}[{key!r}]") for key, part in value.items()]
            elif isinstance(value, (list, tuple)) and depth:
                parts = [(part, f"{path}[{index}]") for index, part in enumerate(value)]
            else:
                parts = []
            for part, inner in parts:
                found = search(part, inner, depth - 1)
                if found is not None:
                    return found
            return path

    args = whole[1] if len(whole) == 2 and callable(whole[0]) else whole
    found = search(args, "args", 4)
    return "" if found is None else f"{found}: "


class _FunctionPickler(pickle.Pickler):
    """Pickler that writes a function as its code, unless a worker can import it.

    It also writes functions of ``__main__`` as code. The globals and cells that the code uses
    follow it.
    """

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, FunctionType):
            name = _name_of(value)
            return NotImplemented if name is not None and name[0] != "__main__" else _by_value(value)
        if isinstance(value, type(sys)):
            return _entry.module_by_name, (value.__name__,)
        if isinstance(value, type) and value.__module__ == "__main__":
            raise TypeError(
                f"the class {value.__qualname__} of __main__ needs cloudpickle to be sent: run pip install cloudpickle,"
                " or move the class to a separate module"
            )
        return NotImplemented


def _by_value(function: FunctionType) -> tuple[object, ...]:
    variables = {name: function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__}
    # `exec` makes functions without a module.
    module = function.__module__ or "__main__"
    if module != "__main__" and _can_be_imported(module):
        # The worker imports the module, which has the globals.
        variables = {}
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            # The cell is not assigned yet.
            continue
    state = (function.__defaults__, function.__kwdefaults__, variables, cells)
    made = (marshal.dumps(function.__code__), module, function.__qualname__)
    return _entry.function_by_value, made, state, None, None, _entry.fill_function


def _names_in(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            names |= _names_in(constant)
    return names
