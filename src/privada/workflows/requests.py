"""What can be seen to be wrong with a request before torch is loaded and rows are read."""

import os
from pathlib import Path
from typing import Any

from privada.workflows.folders import refuse_existing
from privada.workflows.options import TableOptions
from privada.workflows.table_rows import check_names, with_person_of_schema
from privada.workflows.table_source import as_source


def check_request(
    table: Any,
    options: TableOptions,
    output: str | os.PathLike[str] | None,
    *,
    resume: bool = False,
) -> None:
    """Raise what `train_table` and `tune_table` would raise of names alone, without their wait.

    Args:
        table, options, output, resume: what those functions are going to be given.

    Edge cases: it reads names of columns and the first record, changes nothing, and finds the
    common mistakes; the workflows find all.

    Example:
        >>> from pathlib import Path
        >>> from privada.workflows import TrainOptions
        >>> from privada.workflows.requests import check_request
        >>> _ = Path("visits.csv").write_text("age,sick\\n39,no\\n50,yes\\n")
        >>> check_request("visits.csv", TrainOptions(epsilon=1.0, target="sick"), "private")
    """
    if output is not None and not resume:
        refuse_existing(Path(output))
    if not resume:  # a run that goes on may have a schema of its own
        check_names(as_source(table), with_person_of_schema(options))
