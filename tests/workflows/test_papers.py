"""The papers, by key, by method and by what they were called before."""

from pathlib import Path

import pytest

import privada as pv
from privada.core.errors import ArgumentError
from privada.workflows import find_papers
from privada.workflows.papers import PAPERS

ROOT = Path(__file__).parent.parent.parent


def test_they_are_found_by_key_and_by_method():
    assert find_papers() == list(PAPERS)
    assert find_papers(["asi2021private"]) == find_papers(["pagan"]) == [PAPERS[4]]
    assert find_papers(["000", "adadp"]) == [PAPERS[0], PAPERS[2]]
    with pytest.raises(ArgumentError, match="another paper"):
        find_papers(["dp-sgd"])
    with pytest.raises(ArgumentError, match=r"'005'.$"):
        find_papers(["005"])


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_what_they_name_is_there(paper):
    assert set(paper.methods) <= set(pv.methods.names())
    assert all((ROOT / f"{each.replace('.', '/')}.py").is_file() for each in paper.recipes)
    assert paper.link in paper.bibtex()
    assert paper.bibtex().count("{") == paper.bibtex().count("}")
