"""How a raw command is sorted: rules over its exact words, and the strictest that matches counts.

A rule can only make a command milder than `destructive`, which is what every command is that no rule knows. Only words
that stand in a rule match: another path to the program, an abbreviated option or an unknown flag do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sshop.core.operation import Category
from sshop.core.value import Value

SEVERITY = {category: index for index, category in enumerate(Category)}


class Rule(Value):
    """A prefix of exact words, and what may follow it.

    `rest` says which further words are allowed: `none`, `operands` (words that do not begin with `-`) or `any`.
    `options` are words allowed beside them, `flags` single letters that may stand in a word like `-la`. After `--`
    every word is an operand.
    """

    argv: tuple[str, ...]
    category: str
    reason: str
    rest: str = "none"
    options: tuple[str, ...] = ()
    flags: str = ""
    match: tuple[tuple[str, ...], ...] = ()
    not_match: tuple[tuple[str, ...], ...] = ()
    place: str = ""

    def matches(self, words: Sequence[str]) -> bool:
        """Whether these words are what the rule speaks of."""
        count = len(self.argv)
        if tuple(words[:count]) != self.argv:
            return False
        operands_only = False
        for word in words[count:]:
            if self.rest == "any":
                return True
            if operands_only or not word.startswith("-") or word == "-":
                if self.rest != "operands":
                    return False
            elif word == "--" and self.rest == "operands":
                operands_only = True
            elif word not in self.options and not (
                self.flags and re.fullmatch(f"-[{re.escape(self.flags)}]+", word) is not None
            ):
                return False
        return True


def sort(rules: Sequence[Rule], words: Sequence[str]) -> tuple[str, Rule | None]:
    """The category of a raw command and the rule that says so; `destructive` and None where no rule knows it."""
    matching = [rule for rule in rules if rule.matches(words)]
    if not matching:
        return Category.DESTRUCTIVE, None
    strictest = max(matching, key=lambda rule: SEVERITY[Category(rule.category)])
    return strictest.category, strictest


def find_flaws(rules: Sequence[Rule]) -> Iterator[tuple[int, tuple[str | int, ...], str]]:
    """What is wrong with a set of rules: (index of the rule, path of fields in it, message)."""
    seen: dict[tuple[str, ...], Rule] = {}
    for index, rule in enumerate(rules):
        if rule.argv in seen:
            yield index, ("argv",), f"the same words have a rule already, at {seen[rule.argv].place}"
        seen.setdefault(rule.argv, rule)
        if rule.category == Category.CONVERGENT:
            yield index, ("category",), "a raw command has no condition, so no rule can call it convergent"
        if not rule.match:
            yield index, ("examples",), "a rule needs an example that matches"
        for number, words in enumerate(rule.match):
            place = ("examples", "match", number)
            if not rule.matches(words):
                yield index, place, f"the example does not match: {' '.join(words)}"
                continue
            category, other = sort(rules, words)
            if category != rule.category and other is not None:
                yield index, place, f"the rule at {other.place} makes this {category}, not {rule.category}"
        for number, words in enumerate(rule.not_match):
            if rule.matches(words):
                yield index, ("examples", "not_match", number), f"the example matches: {' '.join(words)}"
