"""Frozen, slotted values whose classes cost nothing to make.

`dataclasses` writes and compiles the source of every method when a class is made: 1 ms for a frozen, slotted one, 5 for
one of 24 fields. A run makes all its classes before it does anything, so those on its way are made of this instead. To
a type checker they are frozen dataclasses.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, dataclass_transform

V = TypeVar("V", bound="Value")


class _Shape(type):
    """Turns the annotations of a class body into slots, and its values into defaults."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Shape:
        annotations: dict[str, Any] = namespace.get("__annotations__", {})
        own = tuple(field for field, kind in annotations.items() if "ClassVar" not in str(kind))
        names, defaults = own, {field: namespace.pop(field) for field in own if field in namespace}
        for base in bases:
            names = (*base.__dict__["_names"], *names)
            defaults = {**base.__dict__["_defaults"], **defaults}
        namespace.update(__slots__=own, __match_args__=names, _names=names, _defaults=defaults)
        made = super().__new__(mcs, name, bases, namespace)
        type.__setattr__(made, "_setters", tuple(getattr(made, field).__set__ for field in names))
        return made


@dataclass_transform(frozen_default=True)
class Value(metaclass=_Shape):
    """A base for values: fields are annotations, defaults must be immutable, `__post_init__` may check."""

    _names: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _setters: ClassVar[tuple[Any, ...]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names, setters, defaults = self._names, self._setters, self._defaults
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values, not {len(args)}")
        for setter, value in zip(setters, args, strict=False):
            setter(self, value)
        for index in range(len(args), len(names)):
            name = names[index]
            if name in kwargs:
                setters[index](self, kwargs.pop(name))
            elif name in defaults:
                setters[index](self, defaults[name])
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not take {', '.join(kwargs)}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Where a value checks itself."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self._names)))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
        return f"{type(self).__name__}({inner})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self._names)


def fields_of(value: Value) -> dict[str, Any]:
    """The fields by name, in their order; nested values are not taken apart."""
    return {name: getattr(value, name) for name in value._names}  # noqa: SLF001 - the two belong together


def replace(value: V, **changes: Any) -> V:
    """The same value but for these fields."""
    return type(value)(**{**fields_of(value), **changes})


def said_of(value: Value) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    missing = object()
    return {
        name: content
        for name, content in fields_of(value).items()
        if content != value._defaults.get(name, missing)  # noqa: SLF001
    }


def replaced(value: V, **changes: object) -> V:
    """`replace` in half the time, without a look at the names: it is what a fold does most."""
    new: V = object.__new__(type(value))
    write = object.__setattr__
    for name in value._names:  # noqa: SLF001 - the two belong together
        write(new, name, getattr(value, name))
    put(new, **changes)
    return new


def put(value: object, **changes: object) -> None:
    """Change a value that nobody else holds yet."""
    for name, item in changes.items():
        object.__setattr__(value, name, item)
