"""The five papers that the library unites, and how to cite them."""

from collections.abc import Sequence
from dataclasses import dataclass

from privada.core.errors import ArgumentError


@dataclass(frozen=True)
class Paper:
    """One of the five papers: what is taken from it, and its entry in a bibliography.

    Attributes:
        key: what a bibliography calls it, such as "li2022private".
        authors, year, title, venue: as in a bibliography.
        arxiv: its number on arXiv.
        gives: what is taken from it, in words.
        methods: the methods that come from it, or are compared in it.
        recipes: modules of a checkout that repeat its experiments.

    Example:
        >>> from privada.workflows import find_papers
        >>> find_papers(["adadp"])[0].by
        'Koskela and Honkela'
    """

    key: str
    authors: str
    year: int
    title: str
    venue: str
    arxiv: str
    gives: str
    methods: tuple[str, ...]
    recipes: tuple[str, ...] = ()

    @property
    def by(self) -> str:
        """The authors, in short."""
        first, *others = (each.split(",")[0] for each in self.authors.split(" and "))
        return f"{first} and {others[0]}" if len(others) == 1 else f"{first} et al."

    @property
    def link(self) -> str:
        """Its address."""
        return f"https://arxiv.org/abs/{self.arxiv}"

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        kind, field = ("misc", "note") if "arXiv" in self.venue else ("inproceedings", "booktitle")
        return (
            f"@{kind}{{{self.key},\n"
            f"  author = {{{self.authors}}},\n"
            f"  title = {{{{{self.title}}}}},\n"
            f"  {field} = {{{self.venue}}},\n"
            f"  year = {{{self.year}}},\n"
            f"  url = {{{self.link}}},\n"
            "}"
        )


PAPERS = (
    Paper(
        "li2022private",
        "Li, Tian and Zaheer, Manzil and Reddi, Sashank J. and Smith, Virginia",
        2022,
        "Private Adaptive Optimization with Side Information",
        "International Conference on Machine Learning (ICML)",
        "2202.05963",
        "gradients scaled by side information before they are clipped",
        ("adadps", "dp-r-pub", "dp-adam-pub", "pda-dpmd", "dp-adam", "dp-rmsprop"),
        ("papers.adadps.sparse_regression", "papers.adadps.imdb"),
    ),
    Paper(
        "mohapatra2022role",
        "Mohapatra, Shubhankar and Sasy, Sajin and He, Xi and Kamath, Gautam and Thakkar, Om",
        2022,
        "The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection",
        "AAAI Conference on Artificial Intelligence",
        "2111.04906",
        "the price of tuning, and Adam without its second moment",
        ("dp-adam-wosm", "dp-adam", "dp-momentum"),
        ("papers.honest-selection.tuning", "papers.honest-selection.coupling"),
    ),
    Paper(
        "koskela2020learning",
        "Koskela, Antti and Honkela, Antti",
        2020,
        "Learning Rate Adaptation for Differentially Private Learning",
        "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        "1809.03832",
        "a learning rate that a full step against two half steps sets",
        ("adadp",),
    ),
    Paper(
        "wu2021adaptive",
        "Wu, Xiaoxia and Wang, Lingxiao and Cristali, Irina and Gu, Quanquan and Willett, Rebecca",
        2021,
        "Adaptive Differentially Private Empirical Risk Minimization",
        "arXiv:2110.07435",
        "2110.07435",
        "noise that grows as the steps get smaller",
        ("adp-sgd",),
        ("papers.adp_sgd.quadratic",),
    ),
    Paper(
        "asi2021private",
        "Asi, Hilal and Duchi, John and Fallah, Alireza and Javidbakht, Omid and Talwar, Kunal",
        2021,
        "Private Adaptive Gradient Methods for Convex Optimization",
        "International Conference on Machine Learning (ICML)",
        "2106.13756",
        "clipping and noise in an ellipsoid of the gradients' moments",
        ("pasan", "pagan", "dp-adagrad", "pdp-sgd"),
        ("papers.pagan.absolute_regression",),
    ),
)
# What they were called on the command line of version 0.1.
_FORMER = {f"{number:03}": paper.key for number, paper in enumerate(PAPERS)}


def find_papers(which: Sequence[str] = ()) -> list[Paper]:
    """Return the papers of some keys or methods, all if none are named.

    This is what `privada papers` does.

    Args:
        which: keys such as "li2022private", or methods such as "adadps".

    Returns:
        The papers, in the order in which the documentation lists them.

    Edge cases: a method of another paper, and an unknown name, are refused in words.

    Example:
        >>> from privada.workflows import find_papers
        >>> [paper.key for paper in find_papers(["dp-adam"])]
        ['li2022private', 'mohapatra2022role']
    """
    wanted = [_FORMER.get(name, name) for name in which]
    for name in wanted:
        if not any(name == paper.key or name in paper.methods for paper in PAPERS):
            from privada.methods import names  # which load torch

            known = ", ".join(paper.key for paper in PAPERS)
            why = "is of another paper: its page has the reference"
            raise ArgumentError(
                f"Expected keys among {known}, or methods of these papers, got {name!r}"
                f"{f', which {why}' if name in names() else ''}."
            )
    return [p for p in PAPERS if not wanted or p.key in wanted or set(wanted) & set(p.methods)]
