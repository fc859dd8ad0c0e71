"""`privada`: the commands."""

import sys
from typing import Annotated

import typer

from privada import __version__
from privada.cli.deferred import defer_accountants
from privada.cli.demo import demo
from privada.cli.export import export
from privada.cli.federated import federated
from privada.cli.ledger import commands as ledger_commands
from privada.cli.mistakes import error_in_words, usage_in_words
from privada.cli.papers import papers
from privada.cli.parser import errors, with_arguments_described
from privada.cli.plan import plan
from privada.cli.predict import predict
from privada.cli.report import report
from privada.cli.schema import schema
from privada.cli.train import train
from privada.cli.tune import tune
from privada.core.errors import PrivadaError

app = typer.Typer(
    name="privada",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"privada {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[  # found by main, wherever it stands
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Train models under differential privacy, and account for every query.

    Start with demo, with plan, which reads no data, or with
    train on a table of yours. An error is one line and exit
    code 2, and says what was charged; Ctrl-C is exit code 130.
    """


for command in (demo, plan, schema, train, predict, export, tune, report):
    app.command()(command)
app.add_typer(ledger_commands, name="ledger")
app.command()(papers)
app.add_typer(federated, name="federated")


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    asked = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(asked) < len(sys.argv) - 1
    defer_accountants()
    try:
        command = with_arguments_described(typer.main.get_command(app))
        raise SystemExit(command(args=asked, prog_name="privada", standalone_mode=False) or 0)
    except errors.UsageError as error:
        if not asked or type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # which is the help
        else:
            typer.echo(f"privada: {usage_in_words(error, asked)}", err=True)
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, PrivadaError):
            typer.echo(f"privada: {error_in_words(str(error), asked)}", err=True)
            raise SystemExit(2) from None
        words = f"{type(error).__name__}: {error}".replace("\n", " ")
        typer.echo(
            f"privada: {words}. That should not happen; --debug shows where it did.", err=True
        )
        raise SystemExit(1) from None
