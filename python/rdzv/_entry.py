"""Program that runs a function in each worker of :func:`rdzv.launch`.

It calls one function and writes the value, or the exception, to a file. The interpreter runs this module as a file.
Imports are most of the cost of starting a worker. This module therefore imports nothing from rdzv. Until the function
needs more, it imports only modules that the interpreter has loaded already.
"""

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FunctionType, ModuleType
    from typing import Any

# Name of the caller's main file in a worker. Because of it, the body of
# `if __name__ == "__main__":` does not run here.
MAIN = "__rdzv_main__"

# True while the caller's main file runs. A `launch` in it would start new workers in every worker.
main_is_loading = False

# Types of values that need no pickle.
_PLAIN = (int, float, str, bytes, bool, type(None))


def read_call() -> "dict[str, Any]":
    """Reads the call from the descriptor that the launcher passes to its workers."""
    # `pread`, because all workers share the offset of this descriptor.
    descriptor = int(os.environ.pop("RDZV_CALL"))
    call: "dict[str, Any]" = marshal.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    return call


def load_main(main: "tuple[str | None, str]") -> None:
    """Runs the caller's main file under the name ``MAIN``.

    Afterwards its functions and classes are also in ``__main__``.
    """
    global main_is_loading
    name, path = main
    module = type(sys)(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    if name is not None:
        from importlib.util import find_spec

        spec: "Any" = find_spec(name)
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
        code = spec.loader.get_code(name)
    else:
        module.__file__ = path
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    main_is_loading = True
    exec(code, module.__dict__)
    main_is_loading = False


def pickler(name: str) -> "Any":
    """Module that the caller pickled with: ``cloudpickle`` or ``pickle``."""
    if name == "cloudpickle":
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return cloudpickle
    import pickle

    return pickle


def function_of(call: "dict[str, Any]") -> "tuple[Any, tuple[object, ...]]":
    """Function of the call, and its arguments."""
    module = pickler(call["pickler"]) if call["pickled"] is not None else None
    if call["name"] is not None:
        name, qualified = call["name"]
        function: "Any" = module_by_name(name)
        for part in qualified.split("."):
            function = getattr(function, part)
        return function, () if module is None else module.loads(call["pickled"])
    assert module is not None
    return module.loads(call["pickled"])  # type: ignore[no-any-return]


def function_by_value(code: bytes, module: str, qualified: str) -> "FunctionType":
    """Builds a function from its code, for one that cannot be imported by name."""
    made: "CodeType" = marshal.loads(code)
    if module not in sys.modules:
        try:
            __import__(module)
        except ImportError:
            sys.modules[module] = type(sys)(module)
    enclosing: "Any" = (lambda value: lambda: value)(None)
    cell, kind = type(enclosing.__closure__[0]), type(enclosing)
    closure = tuple(cell() for _ in made.co_freevars)
    function: "FunctionType" = kind(made, sys.modules[module].__dict__, made.co_name, None, closure)
    function.__module__, function.__qualname__ = module, qualified
    return function


def fill_function(function: "FunctionType", state: "tuple[Any, Any, dict[str, object], dict[str, object]]") -> None:
    """Adds the defaults, the globals and the closure cells to a function.

    They are separate from the construction because they can refer to the function itself.
    """
    function.__defaults__, function.__kwdefaults__, variables, cells = state
    function.__globals__.update(variables)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        if name in cells:
            cell.cell_contents = cells[name]


def module_by_name(name: str) -> "ModuleType":
    """Imports and returns a module."""
    __import__(name)
    return sys.modules[name]


def failure(error: BaseException) -> "dict[str, Any]":
    """Type, text, traceback and pickle of an exception.

    The pickle is None if the exception cannot be pickled and unpickled.
    """
    import traceback

    kind = type(error)
    local = kind.__module__ in ("builtins", "__main__", MAIN)
    name = kind.__qualname__ if local else f"{kind.__module__}.{kind.__qualname__}"
    # The frames of this file do not help the user.
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    text = "".join(traceback.format_exception(kind, error, inner))
    try:
        import pickle

        whole = pickle.dumps(error)
        pickle.loads(whole)
    except Exception:
        whole = None
    return {"type": name, "text": str(error), "traceback": text, "pickle": whole}


def write_error_file(error: "dict[str, Any]") -> None:
    """Writes the error file that the launcher reads.

    The format is that of ``torch.distributed.elastic``. Without ``TORCHELASTIC_ERROR_FILE`` it does nothing.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    import json
    import time

    extra = {"py_callstack": error["traceback"], "timestamp": str(int(time.time()))}
    message = f"{error['type']}: {error['text']}"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": message, "extraInfo": extra}}, file)


def leave(folder: str, kind: bytes, content: bytes) -> None:
    """Writes the result file of this rank.

    The file gets its final name last, so that the caller never reads an incomplete one.
    """
    path = os.path.join(folder, os.environ["RANK"])
    with open(path + ".new", "wb") as file:
        file.write(kind + content)
    os.rename(path + ".new", path)


def encode(value: "Any", module: str) -> "tuple[bytes, bytes]":
    """Encodes a value: the letter of the encoding, and the bytes."""
    if type(value) in _PLAIN:
        return b"m", marshal.dumps(value)
    try:
        return b"p", pickler(module).dumps(value, 5)
    except Exception as error:
        kind = type(value)
        raise TypeError(
            f"rank {os.environ['RANK']} returned a value of type {kind.__module__}.{kind.__qualname__} that cannot"
            f" be pickled: {error}"
        ) from None


def main() -> None:
    environment = os.environ
    call = read_call()
    # One folder per attempt, which the first worker creates. The folder of the last attempt has the
    # results.
    folder = os.path.join(
        call["folder"], f"{environment.get('RDZV_ROUND', '0')}.{environment['TORCHELASTIC_RESTART_COUNT']}"
    )
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    sys.path[:], sys.argv[:] = call["path"], call["arguments"]
    try:
        if call["main"] is not None:
            load_main(call["main"])
        else:
            sys.modules["__main__"] = type(sys)("__main__")
        function, arguments = function_of(call)
        kind, content = encode(function(*arguments), call["pickler"])
    except KeyboardInterrupt:
        # The launcher received SIGINT and sent it to its workers.
        sys.exit(130)
    except Exception as error:
        found = failure(error)
        leave(folder, b"e", marshal.dumps(found))
        write_error_file(found)
        if environment["TORCHELASTIC_RESTART_COUNT"] != environment["TORCHELASTIC_MAX_RESTARTS"]:
            # The caller reports only the last attempt, so this one prints its traceback.
            sys.stderr.write(found["traceback"])
        sys.exit(1)
    leave(folder, kind, content)


if __name__ == "__main__":
    # Pickles refer to this module as `rdzv._entry`, but it runs as `__main__`.
    sys.modules["rdzv._entry"] = sys.modules["__main__"]
    main()
