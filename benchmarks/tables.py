"""Reading a table of a million rows by twenty columns: this library, two engines, plain Python.

    python -m benchmarks tables [rows [rounds [checkout [contenders]]]]

With a checkout of the version before PyArrow, that is measured too. Then a table of five times as
many rows is trained on under a limit of memory that its features alone would pass. If contenders
are named, with commas between them, only these are measured anew, "larger" being the larger table;
the figures of others are kept, and the page says so. A checkout of "-" is none.

Eight columns of numbers with missing values, four of whole numbers, five of categories, one of
text, one of dates and the target. Each contender runs in a process of its own, in turns, round
after round; figures are medians. Peak memory is that of the process, imports included.
"""

import csv
import gc
import gzip
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

NUMBERS = [f"x{k}" for k in range(8)]
WHOLE = [f"i{k}" for k in range(4)]
CATEGORIES = {f"c{k}": [f"value {j}" for j in range(10 * (k + 1))] for k in range(5)}
_CHUNK = 100_000
# The larger table: so many times the rows, trained on with so many megabytes of memory of its own,
# as `ulimit -d` limits it.
_TIMES, _LIMIT = 5, 2048


def made_up(folder: Path, rows: int, *, only_csv: bool = False) -> None:
    """Write the same made-up table as CSV, Parquet and JSON lines, or as CSV alone."""
    import numpy as np
    import pyarrow as arrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    random = np.random.default_rng(0)
    words = np.array(
        [
            "ache",
            "back",
            "cough",
            "fever",
            "since",
            "the",
            "week",
            "night",
            "mild",
            "strong",
            "left",
            "right",
        ]
    )
    with (
        (folder / "t.csv").open("wb") as csv_file,
        (folder / "t.jsonl").open("w") as lines,
    ):
        written = None
        for start in range(0, rows, _CHUNK):
            size = min(_CHUNK, rows - start)
            columns: dict[str, Any] = {}
            for name in NUMBERS:
                values = random.normal(50, 20, size).round(2)
                columns[name] = arrow.array(values, mask=random.random(size) < 0.05)
            for name in WHOLE:
                columns[name] = arrow.array(random.integers(0, 100, size))
            for name, known in CATEGORIES.items():
                columns[name] = arrow.array(np.array(known)[random.integers(0, len(known), size)])
            notes = words[random.integers(0, len(words), (size, 6))]
            columns["note"] = arrow.array([" ".join(note) for note in notes])
            days = np.datetime64("2015-01-01") + random.integers(0, 3000, size)
            columns["day"] = arrow.array(days.astype(str))
            columns["y"] = arrow.array(np.array(["no", "yes"])[random.integers(0, 2, size)])
            table = arrow.table(columns)
            arrow_csv.write_csv(table, csv_file, arrow_csv.WriteOptions(include_header=start == 0))
            if only_csv:
                continue
            written = written or parquet.ParquetWriter(folder / "t.parquet", table.schema)
            written.write_table(table)
            for record in table.to_pylist():
                held = {name: value for name, value in record.items() if value is not None}
                lines.write(json.dumps(held) + "\n")
        if written is not None:
            written.close()


def schema() -> Any:
    """Return what the columns are; the text is read, and left out of the features."""
    from privada import tables

    columns: dict[str, Any] = {name: tables.Number(0, 100) for name in (*NUMBERS, *WHOLE)}
    columns |= {name: tables.Category(values) for name, values in CATEGORIES.items()}
    columns |= {"note": tables.Hashed(16), "day": tables.Hashed(32)}
    return tables.Schema(tables.Classes("y", ["no", "yes"]), columns)


def privada_reads(path: Path) -> None:
    from privada import tables

    tables.read(path, schema())


def privada_encodes(path: Path) -> None:
    from privada import tables

    known = schema()
    tables.encode(tables.read(path, known), known)


def privada_streams(path: Path) -> None:
    from privada import tables

    with tempfile.TemporaryDirectory() as folder:
        tables.encode_file(path, schema(), Path(folder) / "features")


def polars_reads(path: Path) -> None:
    import polars

    if path.suffix == ".csv":
        polars.read_csv(path, infer_schema=False)  # all text, as no type may be guessed
    elif path.suffix == ".parquet":
        polars.read_parquet(path)
    else:
        polars.read_ndjson(path)


def pyarrow_reads(path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import csv as arrow_csv
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    if path.suffix == ".csv":
        names = [*NUMBERS, *WHOLE, *CATEGORIES, "note", "day", "y"]
        text = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()))
        quoted = arrow_csv.ParseOptions(newlines_in_values=True)
        arrow_csv.read_csv(path, parse_options=quoted, convert_options=text)
    elif path.suffix == ".parquet":
        parquet.read_table(path)
    else:
        arrow_json.read_json(path)


def python_reads(path: Path) -> None:
    """Read a cell at a time, each different one of a column kept once."""
    known: dict[str, dict[Any, Any]] = {}
    columns: dict[str, list[Any]] = {}
    with path.open(newline="") as file:
        records = csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
        for record in records:
            for name, cell in record.items():
                kept = known.setdefault(name, {})
                columns.setdefault(name, []).append(kept.setdefault(cell, cell))


CONTENDERS = {
    "privada": (privada_reads, (".csv", ".parquet", ".jsonl")),
    "privada, encoded": (privada_encodes, (".csv", ".parquet", ".jsonl")),
    "privada, encoded in a file": (privada_streams, (".csv", ".parquet")),
    "polars": (polars_reads, (".csv", ".parquet", ".jsonl")),
    "pyarrow": (pyarrow_reads, (".csv", ".parquet", ".jsonl")),
    "csv and json modules": (python_reads, (".csv", ".jsonl")),
}
# The first versions of this library, which read and encoded a cell at a time.
_BEFORE = {"before": "privada", "before, encoded": "privada, encoded"}


def work(name: str, path: str) -> None:
    """Run one contender in this process, and print seconds, CPU seconds and peak megabytes."""
    run, _ = CONTENDERS[name]
    gc.collect()
    began = time.perf_counter()
    run(Path(path))
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    # that of getrusage would begin with the parent's
    status = Path("/proc/self/status").read_text().split()
    peak = int(status[status.index("VmHWM:") + 1]) / 1024
    print(json.dumps([seconds, used.ru_utime + used.ru_stime, peak]))


def _measure(name: str, path: Path, source: str) -> list[float]:
    """Run a contender in a fresh process, with the library of some checkout."""
    found: list[float] = _in_process(f"work({name!r}, {str(path)!r})", source)
    return found


def _in_process(call: str, source: str = "") -> Any:
    """Return what a call of a function here prints as JSON, in a fresh process."""
    root = Path(__file__).resolve().parents[1]
    places = [str(Path(source or root) / "src"), str(root)]
    function = call.partition("(")[0]
    code = (
        f"import sys; sys.path[:0] = {places!r}; from benchmarks.tables import {function}; {call}"
    )
    return json.loads(
        subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1]
    )


def train(path: str, stream: bool | None) -> None:
    """Train on a table with little memory, and print what became of it and what it took."""
    import torch

    from privada.workflows import TrainOptions, train_table

    torch.set_num_threads(1)
    folder, megabyte, private = Path(path).parent, 1 << 20, [0]
    resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT * megabyte, _LIMIT * megabyte))
    schema().write(folder / "s.toml")

    def watch() -> None:
        while True:
            words = Path("/proc/self/status").read_text().split()
            private[0] = max(private[0], int(words[words.index("RssAnon:") + 1]) >> 10)
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    options = TrainOptions(
        epsilon=1.0, schema=str(folder / "s.toml"), epochs=1, stream=stream, scratch=str(folder)
    )
    began, steps, width, place = time.perf_counter(), 0, 0, "in memory"
    try:
        trained = train_table(path, options, folder / f"out-{stream}")
        inputs = trained.data.train[0]
        steps, width = trained.trainer.steps_done, inputs.shape[1]
        place = "on disk" if hasattr(inputs, "filename") else place
    except MemoryError:
        assert not (folder / f"out-{stream}").exists(), "it is there if something was charged"
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, time.process_time(), private[0], steps, width, place]))


def write(results: Path, machine: dict[str, object], words: tuple[str, ...]) -> None:
    """Measure contenders in turns, and write the page and the figures."""
    usual = ("1000000", "3", "-", "")
    size, count, before, named = (*words, *usual[len(words) :])[:4]
    rows, rounds, chosen = int(size), int(count), [each for each in named.split(",") if each]
    jobs = {(name, ending): (name, "") for name, (_, ends) in CONTENDERS.items() for ending in ends}
    if before != "-":
        for label, name in _BEFORE.items():
            ends = CONTENDERS[name][1] if name == "privada" else (".csv", ".parquet")
            jobs |= {(label, ending): (name, before) for ending in ends}
    jobs = {job: how for job, how in jobs.items() if not chosen or job[0] in chosen}
    found: dict[tuple[str, str], list[list[float]]] = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        made_up(Path(folder), rows)
        sizes = {each.suffix: each.stat().st_size / 1e6 for each in Path(folder).iterdir()}
        packed = len(gzip.compress((Path(folder) / "t.csv").read_bytes()[: 1 << 24], 6)) / (1 << 24)
        for _ in range(rounds):
            for job, (name, source) in jobs.items():
                found[job].append(_measure(name, Path(folder) / f"t{job[1]}", source))
    figures = {job: _middle(job, turns) for job, turns in found.items()}
    larger = None if chosen and "larger" not in chosen else _larger(rows * _TIMES)
    if chosen:
        kept = json.loads((results / "tables.json").read_text())
        assert kept["rows"] == rows, "figures of a table of another size cannot be kept"
        figures = {(each["contender"], each["file"]): each for each in kept["found"]} | figures
        larger = larger or kept["larger"]
    sizes |= {".csv.gz": sizes[".csv"] * packed}
    _write_page(results, machine, rows, sizes, list(figures.values()), larger, chosen)


def _middle(job: tuple[str, str], turns: list[list[float]]) -> dict[str, Any]:
    """Return the medians of a contender's rounds."""
    seconds, processor, peak = (statistics.median(each) for each in zip(*turns, strict=True))
    return {
        "file": job[1], "contender": job[0], "seconds": round(seconds, 3),
        "cpu_seconds": round(processor, 3), "peak_megabytes": round(peak), "rounds": len(turns),
    }  # fmt: skip


def _larger(rows: int) -> dict[str, Any]:
    """Return what training on a table that is larger than memory takes."""
    with tempfile.TemporaryDirectory() as folder:
        made_up(Path(folder), rows, only_csv=True)
        path = Path(folder) / "t.csv"
        ways = {"as it decides": None, "--no-stream": False}
        found = {way: _in_process(f"train({str(path)!r}, {how})") for way, how in ways.items()}
        return {"rows": rows, "megabytes": path.stat().st_size / 1e6, "found": found}


def _larger_in_words(larger: dict[str, Any]) -> str:
    """Return the part of the page about the larger table."""
    rows, found = larger["rows"], larger["found"]
    width = max(each[4] for each in found.values())
    lines = [
        f"## Larger than memory: {rows:,} rows by 20 columns\n",
        f"`privada train` for one epoch on a CSV file of {larger['megabytes']:.0f} MB, whose "
        f"features take {rows * width * 4 / 1e6:,.0f} MB, with {_LIMIT:,} MB of memory of its own "
        "(`ulimit -d`). Peak memory is what the process had to itself; pages of its files, which "
        "the system takes back when it needs room, are not in it.\n",
        "| rows and features | outcome | seconds | CPU seconds | peak MB |",
        "|---|---|---:|---:|---:|",
    ]
    for way, (seconds, processor, peak, steps, _, place) in found.items():
        outcome = f"{steps:,} steps" if steps else "out of memory, nothing charged"
        lines.append(
            f"| {place}, {way} | {outcome} | {seconds:.0f} | {processor:.0f} | {peak:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _write_page(
    results: Path,
    machine: dict[str, object],
    rows: int,
    sizes: dict[str, float],
    figures: list[dict[str, Any]],
    larger: dict[str, Any],
    anew: list[str],
) -> None:
    usual = {e["file"]: e["cpu_seconds"] for e in figures if e["contender"] == "privada"}
    lines = [
        "| file | contender | seconds | CPU seconds | peak MB | times privada's CPU | rounds |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for ending in (".csv", ".parquet", ".jsonl"):
        lines.extend(
            f"| {ending} | {each['contender']} | {each['seconds']:.2f} | {each['cpu_seconds']:.2f} "
            f"| {each['peak_megabytes']} | {each['cpu_seconds'] / usual[ending]:.2f} "
            f"| {each['rounds']} |"
            for each in figures
            if each["file"] == ending
        )
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    held = ", ".join(f"{ending} {size:.0f} MB" for ending, size in sorted(sizes.items()))
    which = f" Measured last: {', '.join(anew)}; the others earlier." if anew else ""
    page = (
        f"# Tables: {rows:,} rows by 20 columns\n\n"
        "Written by `python -m benchmarks tables`. Each contender in a process of its own, in "
        "turns; medians. CPU seconds include imports, and tell more than seconds where a machine "
        f"is shared, as this one was.{which} Sizes: {held}. Machine: {facts}.\n\n"
        + "\n".join(lines)
        + "\n\n"
        + _larger_in_words(larger)
    )
    (results / "tables.md").write_text(page)
    kept = {
        "machine": machine, "rows": rows, "megabytes": sizes, "anew": anew, "found": figures,
        "larger": larger,
    }  # fmt: skip
    (results / "tables.json").write_text(json.dumps(kept, indent=2) + "\n")
    print(page)
