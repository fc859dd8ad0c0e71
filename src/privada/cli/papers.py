"""`privada papers`: what the library is made of, and how to cite it."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Paper:
    """One of the five papers: what to call it, what is taken from it, and its bibliography."""

    number: str
    key: str
    authors: str
    year: int
    title: str
    venue: str
    gives: str
    methods: tuple[str, ...]
    recipes: tuple[str, ...] = ()

    @property
    def by(self) -> str:
        """The authors, in short."""
        first, *others = (each.split(",")[0] for each in self.authors.split(" and "))
        return f"{first} and {others[0]}" if len(others) == 1 else f"{first} et al."

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        kind, field = ("misc", "note") if "arXiv" in self.venue else ("inproceedings", "booktitle")
        return (
            f"@{kind}{{{self.key},\n"
            f"  author = {{{self.authors}}},\n"
            f"  title = {{{{{self.title}}}}},\n"
            f"  {field} = {{{self.venue}}},\n"
            f"  year = {{{self.year}}},\n"
            "}"
        )


PAPERS = (
    Paper(
        "000",
        "li2022private",
        "Li, Tian and Zaheer, Manzil and Reddi, Sashank J. and Smith, Virginia",
        2022,
        "Private Adaptive Optimization with Side Information",
        "International Conference on Machine Learning (ICML)",
        "gradients scaled by side information before they are clipped",
        ("adadps", "dp-r-pub", "dp-adam-pub", "pda-dpmd", "dp-adam", "dp-rmsprop"),
        ("papers.adadps.sparse_regression", "papers.adadps.imdb"),
    ),
    Paper(
        "001",
        "mohapatra2022role",
        "Mohapatra, Shubhankar and Sasy, Sajin and He, Xi and Kamath, Gautam and Thakkar, Om",
        2022,
        "The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection",
        "AAAI Conference on Artificial Intelligence",
        "the price of tuning, and Adam without its second moment",
        ("dp-adam-wosm", "dp-adam", "dp-momentum"),
        ("papers.honest-selection.tuning", "papers.honest-selection.coupling"),
    ),
    Paper(
        "002",
        "koskela2020learning",
        "Koskela, Antti and Honkela, Antti",
        2020,
        "Learning Rate Adaptation for Differentially Private Learning",
        "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        "a learning rate that a full step against two half steps sets",
        ("adadp",),
    ),
    Paper(
        "003",
        "wu2021adaptive",
        "Wu, Xiaoxia and Wang, Lingxiao and Cristali, Irina and Gu, Quanquan and Willett, Rebecca",
        2021,
        "Adaptive Differentially Private Empirical Risk Minimization",
        "arXiv:2110.07435",
        "noise that grows as the steps get smaller",
        ("adp-sgd",),
        ("papers.adp_sgd.quadratic",),
    ),
    Paper(
        "004",
        "asi2021private",
        "Asi, Hilal and Duchi, John and Fallah, Alireza and Javidbakht, Omid and Talwar, Kunal",
        2021,
        "Private Adaptive Gradient Methods for Convex Optimization",
        "International Conference on Machine Learning (ICML)",
        "clipping and noise in an ellipsoid of the gradients' moments",
        ("pasan", "pagan", "dp-adagrad", "pdp-sgd"),
        ("papers.pagan.absolute_regression",),
    ),
)


def papers(
    which: Annotated[
        list[str] | None,
        typer.Argument(help="Numbers, such as 000, or methods, such as adadps. Default: all."),
    ] = None,
    bibtex: Annotated[
        bool, typer.Option("--bibtex", help="Print entries for a bibliography.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """List the papers that the methods come from, and how to cite them.

    The recipes repeat the papers' own experiments, from a
    checkout of the project: python -m papers.adadps.imdb

    $ privada papers

    $ privada papers dp-adam-wosm --bibtex
    """
    found = chosen(which or [])
    if as_json:
        typer.echo(json.dumps([asdict(paper) for paper in found], indent=2))
    elif bibtex:
        typer.echo("\n\n".join(paper.bibtex() for paper in found))
    else:
        show(found, Console())


def chosen(which: list[str]) -> list[Paper]:
    """Return the papers of some numbers or methods, all if none are named."""
    from privada.core.errors import ArgumentError
    from privada.methods import names

    for name in which:
        if not any(name == paper.number or name in paper.methods for paper in PAPERS):
            known = ", ".join(paper.number for paper in PAPERS)
            why = "is of another paper: its page has the reference"
            raise ArgumentError(
                f"Expected numbers among {known}, or methods of these papers, got {name!r}"
                f"{f', which {why}' if name in names() else ''}."
            )
    return [p for p in PAPERS if not which or p.number in which or set(which) & set(p.methods)]


def show(found: list[Paper], console: Console) -> None:
    """Print the papers as a table."""
    from privada.cli.printing import print_table

    table = Table(title="The papers", title_justify="left", title_style="bold", show_lines=True)
    for name in ("paper", "what it gives", "methods", "recipes"):
        table.add_column(name, overflow="fold")
    for paper in found:
        row: list[Any] = [
            f"{paper.number} {paper.by} ({paper.year}), {paper.title}",
            paper.gives,
            "\n".join(paper.methods),
            "\n".join(paper.recipes) or "none",
        ]
        table.add_row(*row)
    print_table(console, table)
