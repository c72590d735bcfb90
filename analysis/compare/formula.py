"""A formula of metrics, as a target names it: `replayed_tokens / num_requests`."""

import ast
import operator
from collections.abc import Callable

import pandas as pd

_OPERATORS: dict[type[ast.operator], Callable[[pd.Series, pd.Series], pd.Series]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def names_in(formula: str) -> list[str]:
    """The metrics of a formula, in order of their first use.

    Raises:
        ValueError: it has something else than names, + - * / and parentheses.
    """
    names: dict[str, None] = {}
    _walk(formula, lambda name: names.setdefault(name))
    return list(names)


def evaluate(formula: str, values: Callable[[str], pd.Series]) -> pd.Series:
    """The formula, seed by seed; `values` gives a metric by seed."""
    result = _compute(_parsed(formula), values)
    assert isinstance(result, pd.Series)
    return result


def _walk(formula: str, visit: Callable[[str], object]) -> None:
    for node in ast.walk(_parsed(formula)):
        match node:
            case ast.Name(id=name):
                visit(name)
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                pass
            case ast.operator() | ast.Load():
                pass
            case _:
                raise ValueError(f"a metric must be names joined by + - * /, got {formula}")


def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError:
        raise ValueError(f"a metric must be names joined by + - * /, got {formula}") from None


def _compute(node: ast.expr, values: Callable[[str], pd.Series]) -> pd.Series:
    match node:
        case ast.Name(id=name):
            return values(name)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_compute(left, values), _compute(right, values))
        case _:
            raise AssertionError(ast.dump(node))
