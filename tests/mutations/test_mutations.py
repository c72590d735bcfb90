"""The mutations fit the code; `make mutate` tries whether the tests notice them."""

import ast
import re

import pytest
from mutation_list import ROOT, Mutation, StaleMutationError, read_mutations

MUTATIONS = read_mutations()


def _mutation(old: str, new: str) -> Mutation:
    return Mutation(name="toy", file="toy.py", old=old, new=new, tests=())


def test_there_are_mutations_of_every_package() -> None:
    packages = {re.match(r"(hsexp/\w+|\w+)/", mutation.file)[1] for mutation in MUTATIONS}
    assert {"hsexp/memory", "hsexp/sim", "hsexp/ledger", "hsexp/plan", "analysis"} <= packages


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_old_text_once_and_leaves_valid_code(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    changed = mutation.applied(source)
    ast.parse(changed)
    assert changed != source


@pytest.mark.parametrize("test", sorted({test for m in MUTATIONS for test in m.tests}))
def test_a_test_that_should_notice_a_mutation_exists(test: str) -> None:
    path, _, function = test.partition("::")
    assert f"def {function}{'(' if function else ''}" in (ROOT / path).read_text(encoding="utf-8")


def test_a_text_of_several_lines_is_found_at_any_indentation() -> None:
    source = "if a:\n    for b in c:\n        d()\n"
    mutation = _mutation("for b in c:\n    d()", "while b:\n    e()")
    assert mutation.applied(source) == "if a:\n    while b:\n        e()\n"


def test_a_new_text_of_several_lines_is_indented_like_the_line_it_replaces() -> None:
    assert _mutation("d()", "e()\nf()").applied("if a:\n    d()\n") == "if a:\n    e()\n    f()\n"


@pytest.mark.parametrize("source", ["x = 1\n", "d()\nd()\n"])
def test_a_text_that_does_not_occur_exactly_once_is_stale(source: str) -> None:
    with pytest.raises(StaleMutationError, match="has its old text"):
        _mutation("d()", "e()").applied(source)
