"""`python -m privada.image_export FIGURE.json PICTURE.png SECONDS`: draw one figure with kaleido.

`charts.write` runs this in a process of its own. A browser that does not answer cannot then hold
up the caller, and no thread of it outlives the picture. Nothing is fetched: kaleido would load
MathJax from the network, which no chart here needs.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

FAILED, SILENT = 2, 3
_WIDTH, _HEIGHT, _SCALE = 1000, 620, 2
# Set before the browser is killed: what its end makes raise is not what went wrong.
_gave_up = threading.Event()
_UNTIL_GIVEN_UP = 10.0


def draw(figure: str, target: Path, seconds: float) -> None:
    """Write a figure, given as Plotly's JSON, to a picture of the kind that the path ends in.

    Edge cases: after `seconds` the browser is killed and this process ends with `SILENT`.
    """
    import kaleido
    import plotly.io

    options = {
        "format": target.suffix[1:], "width": _WIDTH, "height": _HEIGHT, "scale": _SCALE,
    }  # fmt: skip

    async def drawn() -> bytes:
        browser = kaleido.Kaleido(mathjax=False)
        # until this process is gone: its threads may wait for the browser after the picture, too
        watch = threading.Timer(seconds, _give_up, [browser])
        watch.daemon = True
        watch.start()
        async with browser:
            picture: bytes = await browser.calc_fig(plotly.io.from_json(figure), opts=options)
            return picture

    target.write_bytes(asyncio.run(drawn()))


def _give_up(browser: object) -> None:
    _gave_up.set()
    started = getattr(browser, "subprocess", None)
    if started is not None and started.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(started.pid, signal.SIGKILL)
        else:
            started.kill()
    print("The browser does not answer.", file=sys.stderr, flush=True)
    os._exit(SILENT)


def main() -> None:
    """Draw what the arguments ask for; say in one line what went wrong."""
    logging.disable(logging.CRITICAL)  # the caller reads one line, ours
    source, target, seconds = sys.argv[1:]
    try:
        draw(Path(source).read_text(encoding="utf-8"), Path(target), float(seconds))
    except Exception as error:
        if _gave_up.is_set():
            time.sleep(_UNTIL_GIVEN_UP)  # in which the other thread ends this process
        said = str(error.args[0] if error.args else type(error).__name__)
        print(said.partition(". ")[0].strip().rstrip(".") + ".", file=sys.stderr)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
