"""Tests of the text of `help()` for each public class, function and property."""

import doctest
import enum
import importlib
import inspect

import pytest

import rdzv

# Modules whose `__all__` lists their public names.
MODULES = ["rdzv", "rdzv.elastic", "rdzv.rendezvous", "rdzv.rpc", "rdzv.rpc.backend_registry", "rdzv.testing", "rdzv.torch", "rdzv.worker"]
# One line is enough for these.
SHORT = (property, Exception)


def public():
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute in module.__all__:
            value = getattr(module, attribute)
            if attribute.startswith("__"):
                continue
            yield f"{name}.{attribute}", value, None
            if inspect.isclass(value) and not issubclass(value, Exception):
                for member, found in vars(value).items():
                    if not member.startswith("_") and (callable(found) or is_attribute(found) or isinstance(found, staticmethod)):
                        yield f"{name}.{attribute}.{member}", found, value


def is_attribute(value):
    return isinstance(value, property) or inspect.isgetsetdescriptor(value)


def is_enumeration(value):
    return inspect.isclass(value) and issubclass(value, enum.Enum)


NAMES = dict(sorted((name, (value, owner)) for name, value, owner in public()))


def parameters(value):
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    return [name for name in signature.parameters if name not in ("self", "cls", "args", "kwargs")]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_described(name):
    value, owner = NAMES[name]
    value = value.__func__ if isinstance(value, staticmethod) else value
    text = inspect.getdoc(value)
    assert text, "there is no text"
    first = text.splitlines()[0]
    assert first.rstrip().endswith((".", "``")) or len(text.splitlines()) > 1, first
    if is_attribute(value):
        assert ": " in text, "a property says its type"
        return
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    wanted = parameters(value)
    # Users do not make a Work themselves, and the members of an enumeration are fixed.
    if wanted and value is not rdzv.Work and not is_enumeration(value):
        assert "Args:" in text, "the arguments are not described"
        for parameter in wanted:
            described = (f"{parameter} (", f"{parameter}, ", f"{parameter}: ")
            assert any(form in text for form in described), f"{parameter} has no type and meaning"
    # The methods that torch defines have torch's descriptions.
    if name.startswith("rdzv.torch.PyStore."):
        return
    # The example of its class shows a method, unless the method has an example.
    if wanted and owner is None and not is_enumeration(value) and value is not rdzv.Work:
        assert "Example:" in text, "there is no example"
    result = inspect.signature(value).return_annotation if not inspect.isclass(value) and callable(value) else None
    if isinstance(result, str) and result != "None":
        assert "Returns:" in text


@pytest.mark.parametrize("name", NAMES)
def test_its_example_is_true(name):
    value, _ = NAMES[name]
    value = value.__func__ if isinstance(value, staticmethod) else value
    text = inspect.getdoc(value) or ""
    if "Example:" not in text:
        return
    names = {"rdzv": rdzv}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert example.examples, "the example has no line that runs"
    out = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=out.append)
    assert runner.failures == 0, "".join(out)
