"""Values are frozen, slotted and compared by their fields."""

import copy
import pickle
from typing import ClassVar

import pytest

from sshop.core.value import Value, fields_of, replace, said_of


class Point(Value):
    kind: ClassVar[str] = "point"
    x: int
    y: int = 0


class Named(Point):
    name: str = ""

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError(self.name)


def test_fields_come_by_place_or_name_and_defaults_fill_in():
    assert fields_of(Named(1, name="a")) == {"x": 1, "y": 0, "name": "a"}
    assert fields_of(Named(1, 2, "a")) == fields_of(Named(name="a", y=2, x=1))
    assert Point.kind == "point"


@pytest.mark.parametrize("make", [Point, lambda: Point(1, 2, 3), lambda: Point(1, x=2), lambda: Point(1, z=2)])
def test_what_does_not_fit_is_a_type_error(make):
    with pytest.raises(TypeError):
        make()


def test_a_value_is_frozen_and_slotted():
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 2
    assert not hasattr(point, "__dict__")


def test_values_are_equal_by_class_and_fields():
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert Point(1) != Named(1)
    assert len({Point(1), Point(1), Named(1)}) == 2
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_replace_checks_again():
    assert replace(Named(1, name="a"), x=2) == Named(2, name="a")
    with pytest.raises(ValueError, match="bad"):
        replace(Named(1), name="bad")


def test_what_was_said_leaves_defaults_out():
    assert said_of(Named(1, 0, "n")) == {"x": 1, "name": "n"}


def test_copies_are_equal():
    point = Named(1, 2, "n")
    assert copy.deepcopy(point) == point == pickle.loads(pickle.dumps(point))


def test_a_value_can_be_matched():
    match Point(1, 2):
        case Point(x, y=2):
            assert x == 1
        case _:
            pytest.fail("not matched")
